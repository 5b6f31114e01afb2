"""The package root shows what it lists, and lists what it shows."""

from types import ModuleType

import millpond


def test_the_front_door_is_sorted_and_complete() -> None:
    """Every public name of the package root is in `__all__`, once, in order."""
    visible = [
        name
        for name, value in vars(millpond).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]
    assert sorted(visible) == millpond.__all__
