"""Log records that say which pool and task they are about, those of your own handlers too.

handler = logging.StreamHandler()
handler.addFilter(TaskFilter())
handler.setFormatter(logging.Formatter("%(levelname)s %(pool)s %(task)s %(message)s"))
"""

from millpond.runtime.observe.log_filters import TaskFilter as TaskFilter
