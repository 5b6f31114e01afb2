"""A module that cannot be imported: it raises SystemExit."""

import sys

sys.exit("not today")
