"""Annotations written as text are read where the function was written."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from millpond.errors import ConfigError
from millpond.pool.payload.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction


@dataclass
class Link:
    url: str
    depth: int = 0


def trip(fn: Callable[..., object], value: object) -> object:
    """Return a value after encoding and decoding."""
    job = Signature(fn, name="job")
    (back,), _ = job.decode(job.encode((value,), {}))
    return back


def test_a_type_of_the_module_is_found() -> None:
    """A text annotation may use the names of its module."""

    def task(link: Link) -> None: ...

    assert Link("a", 1) == trip(task, Link("a", 1))


def test_a_type_local_to_a_function_is_found() -> None:
    """It may use the names of the enclosing functions, while they run."""

    @dataclass
    class Local:
        x: int

    def around() -> object:
        @dataclass
        class Nearer:
            x: int

        def task(pair: tuple[Local, Nearer]) -> None: ...

        value = (Local(1), Nearer(2))
        return value == trip(task, value)

    assert around()


def test_the_nearest_of_two_names_counts() -> None:
    """A local name hides the module's."""

    @dataclass
    class Link:
        x: int

    def task(link: Link) -> None: ...

    assert Link(1) == trip(task, Link(1))


def test_a_type_in_the_closure_is_found_later() -> None:
    """Names in its closure are found after the enclosing function has ended."""

    def make() -> tuple[Callable[..., object], Any]:
        @dataclass
        class Kept:
            x: int

        def task(kept: Kept) -> object:
            return Kept(kept.x)

        return task, Kept(1)

    task, value = make()
    assert value == trip(task, value)


def test_a_name_of_the_closure_may_come_later() -> None:
    """A function may be declared before a name of its closure has a value."""

    def task(link: Link) -> object:
        return later, link

    assert Link("a") == trip(task, Link("a"))
    later = 1


def test_a_method_and_a_wrapped_function_are_read_at_home() -> None:
    """A class or a wrapper around it does not matter."""

    class Service:
        def task(self, link: Link) -> None: ...

    @functools.wraps(Service.task)
    def wrapper(*args: Any) -> None: ...

    assert Link("a") == trip(Service().task, Link("a"))
    assert Link("a") == trip(functools.partial(wrapper, None), Link("a"))


def test_a_name_that_is_not_there_is_refused_by_parameter() -> None:
    """A name imported only for type checkers is unknown at run time."""

    def task(fine: int, share: Fraction) -> None: ...
    def result(fine: int) -> Fraction: ...  # type: ignore[empty-body]

    with pytest.raises(ConfigError, match=r"job\(share\)='Fraction' names Fraction, which is not"):
        Signature(task, name="job")
    with pytest.raises(ConfigError, match=r"job\(return\)='Fraction' names Fraction, which is not"):
        Signature(result, name="job")


def test_an_annotation_that_is_no_type_is_refused_by_parameter() -> None:
    """Text can be anything, also an expression that fails."""

    def task(fine: int, x: Any) -> None: ...

    for text in ("1 / 0", "int[", "Link.missing", "[1]"):
        task.__annotations__["x"] = text
        with pytest.raises(ConfigError, match=r"^MILL-003 job\(x\)="):
            Signature(task, name="job")


def test_a_field_that_cannot_be_read_is_blamed_on_its_parameter() -> None:
    """A class may hide a name that is not there."""

    @dataclass
    class Holder:
        share: Fraction

    def task(holder: Holder) -> None: ...

    with pytest.raises(ConfigError, match=r"job\(holder\)=.*cannot be stored: .*Fraction"):
        Signature(task, name="job")
