"""The package root shows what it lists, and lists what it shows."""

import importlib.metadata
import subprocess
import sys

import millpond


def test_the_front_door_is_sorted_and_complete() -> None:
    """Every public name is listed once, in order, and is where the root says it is."""
    assert sorted(set(millpond.__all__)) == millpond.__all__
    assert sorted(millpond._HOME) == millpond.__all__
    assert [] == [name for name in millpond.__all__ if getattr(millpond, name) is None]


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A missing name raises AttributeError."""
    assert not hasattr(millpond, "Milpond")


def test_importing_the_root_imports_nothing_else_of_ours() -> None:
    """What a child process does not use it does not pay for."""
    code = "import sys, millpond; print([m for m in sys.modules if m.startswith('millpond.')])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "[]" == answer.stdout.strip()


def test_the_front_door_shows_only_what_is_for_users() -> None:
    """`dir(millpond)` is the public names and the version, which is that of the package."""
    assert {"__version__", *millpond.__all__} == {*dir(millpond)}
    assert importlib.metadata.version("millpond") == millpond.__version__


def test_what_the_api_gives_can_be_named_in_annotations() -> None:
    """Snapshots, tasks, lanes, runs and options are at the root, like the pools they come from."""
    assert {"ErrorInfo", "LaneStatus", "Options", "Run", "Snapshot", "TaskInfo"} <= {
        *millpond.__all__
    }
