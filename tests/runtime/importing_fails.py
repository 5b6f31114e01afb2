"""A module that cannot be imported: it wants to leave."""

import sys

sys.exit("not today")
