"""A process that does nothing for a supervisor to hurt: `python dummy.py ROLE HOME HOW PARENT`.

A worker waits to be told to stop. A submitter ends by itself once four processes have ended.
"""

import signal
import sys
import time
from pathlib import Path

from millpond.testing.torture.member import end_with_parent


def main() -> int:
    """Do what the role says."""
    role, home, manner, parent = sys.argv[1:]
    end_with_parent(int(parent))
    if role == "submitter":
        ledger = Path(home) / "ledger.jsonl"
        while ledger.read_text().count('"what":"gone"') < 4:
            time.sleep(0.02)
        return 0
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if manner == "feeble" and role == "worker":
        return 3
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
