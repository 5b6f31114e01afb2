"""Admission control inside one process: `Bulkhead` and what it answers."""

from millpond.bulkhead.bulkhead import Bulkhead as Bulkhead
from millpond.bulkhead.permit import Permit as Permit
from millpond.bulkhead.reports import Capacity as Capacity
from millpond.bulkhead.reports import HookEvent as HookEvent
from millpond.bulkhead.reports import Leftover as Leftover
from millpond.bulkhead.reports import PermitRejection as PermitRejection
from millpond.bulkhead.reports import Stats as Stats
