"""The public test kit: a lab for handlers, virtual time, simulation, and the suite for stores."""

from millpond.testing.eager import eager as eager
from millpond.testing.lab import Lab as Lab
from millpond.testing.lab import lab as lab
