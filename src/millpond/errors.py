"""The errors of Millpond: one root, stable codes, fields to branch on."""

from millpond.core.errors import *  # noqa: F403 - the tree is drawn and listed in core/errors.py
from millpond.core.errors import __all__ as __all__
