"""The reference shows every public name, with a docstring for each."""

import inspect
import re
from pathlib import Path

import pytest
from tools import reference, signatures, values
from tools.reference_pages import PAGES, Class

import millpond
from millpond import testing

ROOT = Path(__file__).parents[2]
TEXT = "".join(page.read_text("utf-8") for page in sorted(ROOT.glob("docs/reference/*.md")))
KIT = [name for name, one in vars(testing).items() if name[0] != "_" and not inspect.ismodule(one)]
CLASSES = {
    part.kind: (name, part)
    for name, page in PAGES.items()
    for part in page.parts
    if isinstance(part, Class)
}


def is_shown(name: str, text: str) -> bool:
    """Return whether a name has a section or a row of its own, or is the twin of one that has."""
    places = (rf"^## {name}\b", rf"^\| `{name}\(", rf"^`{name}`, a kind of")
    twin = rf"\s`{name}`,\sfor\sthreads:"
    return any(re.search(place, text, re.MULTILINE) for place in (*places, twin))


@pytest.mark.parametrize("name", [*millpond.__all__, *KIT])
def test_every_public_name_is_in_the_reference(name: str) -> None:
    """What `from millpond import ...` finds has a place where its meaning stands."""
    assert is_shown(name, TEXT)


def test_a_name_that_no_page_shows_is_noticed() -> None:
    """A mention in a sentence is not enough."""
    assert not is_shown("Milpond", TEXT + "\nA `Milpond` has pools.\n")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_member_of_a_class_is_on_its_page(kind: type) -> None:
    """Whatever `dir()` shows, by whichever way the class has it."""
    page, part = CLASSES[kind]
    text = (ROOT / "docs/reference" / page).read_text("utf-8")
    section = text.partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0]
    foreign = {name for base in kind.__mro__ if not _is_ours(base) for name in vars(base)}
    names = {name for name in dir(kind) if name[0] != "_"} - foreign - values.INTERNAL
    shown = {*re.findall(rf"^### {part.name}\.(\w+)$|^\| `(\w+)` ", section, re.MULTILINE)}
    assert set() == names - {one or other for one, other in shown}


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("millpond.")


class Bare:
    """A class with a method that says nothing."""

    def method(self) -> None: ...


Bare.__module__ = "millpond.bare"


def test_a_method_without_a_docstring_stops_the_generator() -> None:
    """`make docs` and the check of the pages name it."""
    with pytest.raises(values.Undocumented, match=r"Bare\.method has no docstring"):
        list(reference.methods(Bare))


def test_a_class_for_threads_has_no_methods_of_its_own_but_get() -> None:
    """So the page of a class is the page of its twin, too; `get()` is what `await` is elsewhere."""
    own = {
        f"{part.twin.__name__}.{method.name}"
        for _, part in CLASSES.values()
        if part.twin
        for method in reference.methods(part.twin)
        if not hasattr(part.kind, method.name)
    }
    assert {"SyncHandle.get", "SyncMapped.get"} == own


@pytest.mark.parametrize(
    ("name", "function", "line"),
    [
        ("mp.why", millpond.Millpond.why, "await mp.why(task: int, /) -> str"),
        ("b.blocking", millpond.Bulkhead.blocking, "with b.blocking("),
        ("mp.worker", millpond.Millpond.worker, "async with mp.worker("),
        (
            "mp.audit",
            millpond.Millpond.audit,
            "mp.audit(pool: str | Pool | SyncPool | None = None)",
        ),
        ("pool.task", millpond.Pool.task, "@pool.task("),
        ("pool.submit", millpond.Pool.submit, "await pool.submit(\n    work: BoundCall[T] | Call"),
    ],
)
def test_a_signature_is_what_a_user_writes(name: str, function: object, line: str) -> None:
    """With `await` or `with` before it, without `self`, and in types that a user knows."""
    assert callable(function)
    assert signatures.signature_of(name, function).startswith(line)
