"""A process that does nothing for a supervisor to hurt: `python dummy.py ROLE HOME MANNER PARENT`.

A worker waits for SIGTERM. A submitter or a canceller ends by itself once four processes
have ended. It knows nothing of Millpond: it has to start at once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    """Do what the role says."""
    role, home, manner, parent = sys.argv[1:]
    ledger = Path(home) / "ledger.jsonl"
    if manner == "feeble" and role == "worker":
        opened(ledger, role)
        return 3
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    opened(ledger, role)
    while os.getppid() == int(parent):
        if (
            role in ("submitter", "canceller")
            and ledger.read_text().count('"what":"processended"') >= 4
        ):
            return 0
        time.sleep(0.02)  # neither its parent nor the ledger gives an event
    return 70


def opened(ledger: Path, role: str) -> None:
    """Write down that it is at work."""
    who = {"pid": os.getpid(), "owner": "dummy", "role": role, "number": 0}
    line = {"what": "storeopened", "wall": time.time(), "mono": time.monotonic(), **who}
    with ledger.open("a") as file:
        file.write(f"\n{json.dumps(line)}\n")


if __name__ == "__main__":
    sys.exit(main())
