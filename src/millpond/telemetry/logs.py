"""Add the pool and task to log records, also to those that your handlers write.

handler = logging.StreamHandler()
handler.addFilter(TaskFilter())
handler.setFormatter(logging.Formatter("%(levelname)s %(pool)s %(task)s %(message)s"))
"""

from millpond.runtime.observe.log_filters import TaskFilter as TaskFilter
