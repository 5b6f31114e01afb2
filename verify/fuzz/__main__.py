"""Where `python -m verify.fuzz` begins."""

from __future__ import annotations

import sys

from verify.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())
