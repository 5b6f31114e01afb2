"""Commands: their fields are checked where they are made."""

from collections.abc import Callable
from typing import Any

import pytest

from millpond.core.control import ClaimLeadership, Hold, Register, Resize
from millpond.errors import ConfigError

MISSING: Any = None


@pytest.mark.parametrize(
    "made",
    [
        lambda: Hold("p", MISSING),
        lambda: Register("w", MISSING),
        lambda: ClaimLeadership("process", MISSING),
    ],
    ids=["hold", "register", "leadership"],
)
def test_a_command_needs_its_seconds_or_its_lease(made: Callable[[], object]) -> None:
    """None is no number of seconds; elsewhere it means that nothing was given."""
    with pytest.raises(ConfigError):
        made()
    assert Resize("p", None).max_concurrent is None
