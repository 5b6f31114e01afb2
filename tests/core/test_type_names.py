"""Stored names of exception types: users' own paths, and no module path of this library."""

import importlib
import inspect

import pytest

import millpond
from millpond import errors
from millpond.core import handler_signals
from millpond.core.backoff import Retry, tries_again
from millpond.core.type_names import public_name, qualified_name
from millpond.runtime.executors.processes.parent import ChildDied
from millpond.runtime.jobs import outcome


class Ours(Exception):
    """An error of a user."""

    class Nested(Exception):
        """Another one."""


PUBLIC = [
    kind
    for module in (errors, handler_signals)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, BaseException) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_a_stored_name_of_ours_can_be_imported(kind: type[BaseException]) -> None:
    """It is the name that a user would write, wherever the class is defined."""
    module, _, name = qualified_name(kind).rpartition(".")
    assert module in {"millpond", "millpond.errors"}
    assert kind is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("kind", [outcome.BadResult, outcome.Unreadable, outcome.Misfit, ChildDied])
def test_an_internal_error_is_stored_without_its_module(kind: type[BaseException]) -> None:
    """What is stored stays the same when a module moves."""
    assert f"millpond.{kind.__name__}" == qualified_name(kind)


def test_names_of_users_and_builtins_stay() -> None:
    """Only paths of this library are shortened."""
    assert [f"{__name__}.Ours", f"{__name__}.Ours.Nested", "OSError"] == [
        qualified_name(kind) for kind in (Ours, Ours.Nested, OSError)
    ]
    for stored in ("millpond_app.core.Boom", "app.millpond.Boom", "ValueError", ""):
        assert stored == public_name(stored)


OLD = ["millpond.core.wish.GiveUp", "millpond.core.handler_signals.GiveUp", "millpond.GiveUp"]
FULL = ["millpond.errors.PoolFull", "millpond.PoolFull"]


@pytest.mark.parametrize(
    ("stored", "kind"),
    [*((name, millpond.GiveUp) for name in OLD), *((name, errors.PoolFull) for name in FULL)],
)
def test_a_policy_matches_by_every_name_a_type_was_stored_under(
    stored: str, kind: type[BaseException]
) -> None:
    """A policy that an earlier version stored means the same type."""
    kinds = tuple(qualified_name(base) for base in kind.__mro__)
    assert tries_again(Retry(on=stored), kinds)
    assert not tries_again(Retry(never=stored), kinds)
    assert not tries_again(Retry(on="millpond.core.wish.Throttled"), kinds)


@pytest.mark.parametrize("stored", OLD)
def test_kinds_that_an_earlier_version_named_match_a_policy_of_this_one(stored: str) -> None:
    """A child process, or a record, may name the type as it used to be."""
    assert tries_again(Retry(on=millpond.GiveUp), (stored, "Exception"))
    assert not tries_again(Retry(never=millpond.GiveUp), (stored, "Exception"))
