"""Where `python -m millpond.testing.fuzz` begins."""

from __future__ import annotations

import sys

from millpond.testing.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())
