"""Fixtures for pytest: `millpond_lab` and `millpond_eager`, for the Millpond of your application.

    [tool.pytest.ini_options]
    millpond_app = "shop.work:mp"

pytest loads this module at its start, in every project that has Millpond installed. So it imports
nothing of Millpond before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millpond import Millpond
    from millpond.testing import Lab

OPTION = "millpond_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that names the Millpond."""
    parser.addini(OPTION, "module:name of the Millpond that the fixtures open")


@pytest.fixture
def millpond_app(pytestconfig: pytest.Config) -> Millpond:
    """Return the Millpond under test: the setting `millpond_app` names it, or you override this."""
    place = str(pytestconfig.getini(OPTION) or "")
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise pytest.UsageError(
            f'name your Millpond: {OPTION} = "package.module:mp" in the settings of pytest, or '
            "override the fixture millpond_app"
        )
    found: Millpond = getattr(import_module(module), name)
    return found


@pytest.fixture
def millpond_lab(millpond_app: Millpond) -> Iterator[Lab]:
    """Open the Millpond in a lab: virtual time, a store in memory, nothing runs by itself."""
    from millpond.testing import lab  # noqa: PLC0415 - see above

    with lab(millpond_app) as bench:
        yield bench


@pytest.fixture
def millpond_eager(millpond_app: Millpond) -> Iterator[Lab]:
    """Open the Millpond so that `mp.sync` works here, and what it submits runs at once."""
    from millpond.testing.eager import eager  # noqa: PLC0415 - see above

    with eager(millpond_app) as bench:
        yield bench
