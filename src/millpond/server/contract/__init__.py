"""What the API takes and returns: the OpenAPI document is made from these.

Moments are seconds since 1970 and lengths of time are seconds. Ids of tasks and runs are texts,
because they have 63 bits and many readers of JSON round numbers beyond 53.
"""

from millpond.server.contract.actions import (
    Bulk as Bulk,
)
from millpond.server.contract.actions import (
    BulkFilter as BulkFilter,
)
from millpond.server.contract.actions import (
    CancelOrder as CancelOrder,
)
from millpond.server.contract.actions import (
    Changed as Changed,
)
from millpond.server.contract.actions import (
    ResizeOrder as ResizeOrder,
)
from millpond.server.contract.actions import (
    TaskUpdate as TaskUpdate,
)
from millpond.server.contract.actions import (
    TaskUpdated as TaskUpdated,
)
from millpond.server.contract.actions import (
    UnitOrder as UnitOrder,
)
from millpond.server.contract.audit import (
    AuditItem as AuditItem,
)
from millpond.server.contract.audit import (
    AuditPage as AuditPage,
)
from millpond.server.contract.basics import (
    ErrorAnswer as ErrorAnswer,
)
from millpond.server.contract.basics import (
    ErrorOf as ErrorOf,
)
from millpond.server.contract.basics import (
    Problem as Problem,
)
from millpond.server.contract.basics import (
    State as State,
)
from millpond.server.contract.dead import (
    DeadGroup as DeadGroup,
)
from millpond.server.contract.dead import (
    DeadPage as DeadPage,
)
from millpond.server.contract.events import (
    Emission as Emission,
)
from millpond.server.contract.events import (
    Emitted as Emitted,
)
from millpond.server.contract.events import (
    EventItem as EventItem,
)
from millpond.server.contract.events import (
    EventPage as EventPage,
)
from millpond.server.contract.events import (
    ReceiptItem as ReceiptItem,
)
from millpond.server.contract.events import (
    ReceiptPage as ReceiptPage,
)
from millpond.server.contract.events import (
    TriggerItem as TriggerItem,
)
from millpond.server.contract.events import (
    TriggerPage as TriggerPage,
)
from millpond.server.contract.pools import (
    Budget as Budget,
)
from millpond.server.contract.pools import (
    History as History,
)
from millpond.server.contract.pools import (
    Percentiles as Percentiles,
)
from millpond.server.contract.pools import (
    PoolDetail as PoolDetail,
)
from millpond.server.contract.pools import (
    PoolGlance as PoolGlance,
)
from millpond.server.contract.pools import (
    PoolPage as PoolPage,
)
from millpond.server.contract.pools import (
    Recent as Recent,
)
from millpond.server.contract.pools import (
    Revision as Revision,
)
from millpond.server.contract.pools import (
    Unit as Unit,
)
from millpond.server.contract.runs import (
    RunDetail as RunDetail,
)
from millpond.server.contract.runs import (
    RunItem as RunItem,
)
from millpond.server.contract.runs import (
    RunPage as RunPage,
)
from millpond.server.contract.schedules import (
    Fired as Fired,
)
from millpond.server.contract.schedules import (
    ScheduleItem as ScheduleItem,
)
from millpond.server.contract.schedules import (
    SchedulePage as SchedulePage,
)
from millpond.server.contract.session import (
    Login as Login,
)
from millpond.server.contract.session import (
    SessionInfo as SessionInfo,
)
from millpond.server.contract.submit import (
    Receipt as Receipt,
)
from millpond.server.contract.submit import (
    Submission as Submission,
)
from millpond.server.contract.submit import (
    SubmitOptions as SubmitOptions,
)
from millpond.server.contract.tasks import (
    Attempt as Attempt,
)
from millpond.server.contract.tasks import (
    Payload as Payload,
)
from millpond.server.contract.tasks import (
    TaskCount as TaskCount,
)
from millpond.server.contract.tasks import (
    TaskHistory as TaskHistory,
)
from millpond.server.contract.tasks import (
    TaskItem as TaskItem,
)
from millpond.server.contract.tasks import (
    TaskPage as TaskPage,
)
from millpond.server.contract.tasks import (
    TaskResult as TaskResult,
)
from millpond.server.contract.tasks import (
    TaskStory as TaskStory,
)
from millpond.server.contract.tasks import (
    Trace as Trace,
)
from millpond.server.contract.workers import (
    HeldTask as HeldTask,
)
from millpond.server.contract.workers import (
    WorkerItem as WorkerItem,
)
from millpond.server.contract.workers import (
    WorkerPage as WorkerPage,
)
