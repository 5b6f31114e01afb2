"""Payloads: arguments come back as they were given, or are refused by name."""

import dataclasses
import functools
import math
import operator
import os
import string
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.errors import BadPayload, ConfigError, PayloadTooLarge
from millpond.pool.payload.signature import (
    LARGEST,
    MISSING,
    BadResult,
    Signature,
    Unreadable,
    fingerprint,
)

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    S = "s"
    L = "l"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Access(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Point3(Point):
    z: float = 0.0


@dataclasses.dataclass
class Line:
    ends: tuple[Point, Point]
    tags: set[str] = dataclasses.field(default_factory=set)
    colour: Colour = Colour.RED
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Corner:
    name: str


@dataclasses.dataclass
class Counted:
    items: list[int]
    total: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Loose:
    anything: Any


@dataclasses.dataclass
class Shifting:
    x: int

    def __post_init__(self) -> None:
        self.x += 1


def with_total() -> Counted:
    made = Counted([1])
    made.total = 7
    return made


class Tree(msgspec.Struct):
    value: int
    kids: list["Tree"] = []


class Cat(msgspec.Struct, tag=True):
    age: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


class Place(NamedTuple):
    row: int
    column: int = 0


class Movie(TypedDict, total=False):
    title: str
    year: int


class Context:
    """Stands for the context that a worker gives a handler."""


class SyncContext(Context, Generic[T]):
    """The context for threads."""


class Failed:
    """Stands for an outcome in place of a result."""


UserId = NewType("UserId", int)


def one(annotation: Any) -> Signature:
    """The signature of a function with one parameter `x` that gives the same type back."""

    def task(x: Any) -> Any: ...

    task.__annotations__ = {"x": annotation, "return": annotation}
    return Signature(task, name="job")


def signature(fn: Callable[..., object], **options: Any) -> Signature:
    return Signature(fn, name="job", **options)


def refusal(signature: Signature, *args: object, **kwargs: object) -> BadPayload:
    """The error a bad call gets."""
    with pytest.raises(BadPayload) as refused:
        signature.encode(args, kwargs)
    assert "job" == refused.value.task
    return refused.value


# ---- round trips -----------------------------------------------------------------------------

whole_text = st.text(st.characters(exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False, allow_infinity=False)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
unfolded = operator.methodcaller("replace", fold=0)
points = st.builds(Point, st.integers(), finite)
lines = st.builds(
    Line,
    st.tuples(points, points),
    st.sets(whole_text),
    st.sampled_from(Colour),
    st.none() | whole_text,
)
json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | whole_text,
    lambda inner: st.lists(inner) | st.dictionaries(whole_text, inner),
    max_leaves=12,
)
trees = st.recursive(
    st.builds(Tree, st.integers()),
    lambda inner: st.builds(Tree, st.integers(), st.lists(inner, max_size=3)),
    max_leaves=6,
)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, json_values),
    (object, json_values),
    (list[object], st.lists(json_values)),
    (dict[str, Any], st.dictionaries(whole_text, json_values)),
    (bool, st.booleans()),
    (int, st.integers()),
    (int, st.integers(-(2**2000), 2**2000)),
    (float, finite),
    (int | float, st.integers() | finite),
    (str, whole_text),
    (None, st.none()),
    (bytes, st.binary()),
    (bytearray, st.binary().map(bytearray)),
    (Decimal, st.decimals()),
    (UUID, st.uuids()),
    (date, st.dates()),
    (datetime, st.datetimes().map(unfolded)),
    (datetime, st.datetimes(timezones=offsets).map(unfolded)),
    (time, st.times().map(unfolded)),
    (timedelta, st.timedeltas(timedelta(days=-99_999_999), timedelta(days=99_999_999))),
    (Colour, st.sampled_from(Colour)),
    (Size, st.sampled_from(Size)),
    (Level, st.sampled_from(Level)),
    (Access, st.sampled_from([Access.READ, Access.READ | Access.WRITE])),
    (Literal["a", 1] | None, st.sampled_from(["a", 1, None])),
    (Optional[int], st.none() | st.integers()),  # noqa: UP045 - both spellings
    (int | str | None, st.none() | st.integers() | whole_text),
    (int | list[int], st.integers() | st.lists(st.integers())),
    (list[int], st.lists(st.integers())),
    (Sequence[str], st.lists(whole_text)),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (tuple[int, str], st.tuples(st.integers(), whole_text)),
    (set[int], st.sets(st.integers())),
    (set[Corner], st.sets(st.builds(Corner, whole_text))),
    (frozenset[str], st.frozensets(whole_text)),
    (set[tuple[int, str]], st.sets(st.tuples(st.integers(), whole_text))),
    (dict[str, int], st.dictionaries(whole_text, st.integers())),
    (Mapping[str, bool], st.dictionaries(whole_text, st.booleans())),
    (dict[int, str], st.dictionaries(st.integers(-(2**63), 2**63 - 1), whole_text)),
    (dict[date, float], st.dictionaries(st.dates(), finite)),
    (dict[Size, int], st.dictionaries(st.sampled_from(Size), st.integers())),
    (Point, points),
    (Line, lines),
    (list[Line], st.lists(lines, max_size=3)),
    (Point | None, st.none() | points),
    (Place, st.builds(Place, st.integers(), st.integers())),
    (Movie, st.fixed_dictionaries({}, optional={"title": whole_text, "year": st.integers()})),
    (Tree, trees),
    (Cat | Dog, st.builds(Cat, st.integers()) | st.builds(Dog, whole_text)),
    (Page[int], st.builds(Page, st.lists(st.integers()))),
    (UserId, st.integers()),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0)),
    (Annotated[int, ["unhashable"]], st.integers()),
]


@pytest.mark.parametrize("case", range(len(VALUES)), ids=lambda n: str(VALUES[n][0])[:40])
@given(data=st.data())
def test_accepted_arguments_come_back_the_same(case: int, data: st.DataObject) -> None:
    """Value and types survive the trip, as an argument and as a result."""
    annotation, values = VALUES[case]
    signature, value = one(annotation), data.draw(values)
    (back,), none = signature.decode(signature.encode((value,), {}))
    result = signature.decode_result(signature.encode_result(value))
    # repr shows what == forgives: types, signs, trailing zeros. But it shows the order of sets.
    if signature._codecs["x"].unordered:
        assert (value, value, {}) == (back, result, none)
    else:
        assert (repr(value), repr(value), {}) == (repr(back), repr(result), none)


@given(st.dictionaries(whole_text, json_values, max_size=4), st.lists(json_values, max_size=4))
def test_variadic_arguments_come_back_in_their_places(
    named: dict[str, Any], more: list[Any]
) -> None:
    """`*args` and `**kwargs` are stored under their own names."""

    def task(first: int, /, *rest: Any, word: int = 3, **others: Any) -> None: ...

    named.pop("word", None)
    payload = signature(task).encode((1, *more), {"word": 2, **named})
    assert ([1, *more], {"word": 2, **named}) == signature(task).decode(payload)


@given(st.sets(whole_text), st.randoms())
def test_equal_sets_give_equal_bytes(words: set[str], chance: Any) -> None:
    """The order in which a set was filled does not show, so a repeated call is the same call."""
    shuffled = list(words)
    chance.shuffle(shuffled)
    assert one(set[str]).encode((words,), {}) == one(set[str]).encode((set(shuffled),), {})


def test_equal_sets_give_equal_bytes_in_every_process() -> None:
    """Not even members that hash by chance and have no order show one."""
    code = (
        "from enum import Enum; from millpond.pool.payload.signature import Signature\n"
        "class Hue(Enum): A = 'a'; B = 'b'; C = 'c'; D = 'd'; E = 'e'; F = 'f'\n"
        "def task(a: set[Hue], b: frozenset[tuple[str, str]]) -> None: ...\n"
        "pairs = frozenset((str(n), str(n)) for n in range(20))\n"
        "print(Signature(task, name='job').encode((set(Hue), pairs), {}))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert 1 == len(printed)


def test_a_dict_keeps_its_order() -> None:
    """JSON objects have an order here, also beside an argument that is a set."""

    def task(columns: dict[str, int], tags: set[str]) -> None: ...

    columns = {"z": 1, "a": 2}
    (back, _), _ = signature(task).decode(signature(task).encode((columns, {"b", "a"}), {}))
    assert ["z", "a"] == list(back)  # type: ignore[call-overload]


def test_a_datetime_keeps_its_offset_but_not_the_name_of_its_zone() -> None:
    """A zone is decoded as its offset: the same time with the same local reading."""
    berlin = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    (back,), _ = one(datetime).decode(one(datetime).encode((berlin,), {}))
    assert datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1))) == back


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (float, 3, 3.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (str, Size.L, "l"),
        (int, Level.HIGH, 2),
        (dict[str, int], Counter(a=1), {"a": 1}),
        (dict[str, list[int]], defaultdict(list, a=[1]), {"a": [1]}),
        (dict[str, int], OrderedDict(a=1), {"a": 1}),
        (tuple[int, int], Place(1, 2), (1, 2)),
        (str, "a\0b", "a\0b"),
        (Counted, with_total(), with_total()),
        # A local time in the hour that occurs twice: naive times are ambiguous.
        (datetime, datetime(2026, 10, 25, 2, fold=1), datetime(2026, 10, 25, 2)),  # noqa: DTZ001
        (Decimal, Decimal("Infinity"), Decimal("Infinity")),
    ],
)
def test_a_value_may_stand_for_its_plainer_base(annotation: Any, value: Any, back: Any) -> None:
    """An int for a float, an enum's member for its text, a Counter for a dict lose nothing."""
    (found,), _ = one(annotation).decode(one(annotation).encode((value,), {}))
    assert (type(back), back) == (type(found), found)


# ---- refusals at submit ----------------------------------------------------------------------


class Tagged(dict[str, int]):
    tag = ""


class Text(str):
    __slots__ = ()


class Odd(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(seconds=3599)

    def tzname(self, _: datetime | None) -> None: ...
    def dst(self, _: datetime | None) -> None: ...


def tagged() -> Tagged:
    made = Tagged()
    made.tag = "own"
    return made


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


class Liar:
    def __eq__(self, other: object) -> bool:
        raise KeyError("no comparison")

    __hash__ = None  # type: ignore[assignment]


BAD: list[tuple[Any, Any, str]] = [
    # the wrong type
    (int, "3", "must be int, not str"),
    (int, 1.0, "must be int, not float"),
    (int, True, "must be int, not bool"),
    (int, None, "must be int, not NoneType"),
    (float, "1", "must be float, not str"),
    (float, True, "must be float, not bool"),
    (float, Decimal(1), "must be float, not Decimal"),
    (str, 3, "must be str, not int"),
    (bool, 1, "must be bool, not int"),
    (list[int], [1, "2"], r"must be list\[int\]: .*at `\$\[1\]`"),
    (date, datetime(2026, 1, 1, tzinfo=UTC), "must be date"),
    (Literal["a"], "b", "must be Literal"),
    (Annotated[int, msgspec.Meta(ge=0)], -1, ">= 0"),
    (Colour, "red", "str would come back as Colour"),
    (Point, {"x": 1, "y": 1.0}, "dict would come back as Point"),
    (Point, (1, 2), "must be Point"),
    (Place, (1, 2), "tuple would come back as Place"),
    (Point | None, 3, "must be"),
    (Decimal, 1, "int would come back as Decimal"),
    # another type would come back
    (str, b"abc", "bytes would come back as str"),
    (str, datetime(2026, 1, 1, tzinfo=UTC), "datetime would come back as str"),
    (str, Colour.RED, "Colour would come back as str"),
    (list[int], (1, 2), "tuple would come back as list"),
    (list[int], {1, 2}, "set would come back as list"),
    (Sequence[int], (1, 2), "tuple would come back as list"),
    (bytes, bytearray(b"a"), "bytearray would come back as bytes"),
    (Any, (1, 2), "tuple would come back as list"),
    (Any, [1, {"a": (1,)}], r"\[1\]\[...\] tuple would come back as list"),
    (Any, {1}, "set would come back as list; to keep it, say its type in an annotation"),
    (Any, b"x", "bytes would come back as str"),
    (Any, Point(1), "Point would come back as dict"),
    (Any, Size.S, "Size would come back as str"),
    (Any, Counter(a=1), "Counter would come back as dict"),
    (Any, {1: 2}, "key of type int"),
    (Any, {1: 2, "1": 3}, "would lose entries"),
    (Any, UUID(int=1), "UUID would come back as str"),
    (object, (1,), "tuple would come back as list"),
    (list[object], [(1,)], "tuple would come back as list"),
    (Loose, Loose((1,)), r"\.anything tuple would come back as list"),
    (dict[str, Any], {"a": Size.S}, "Size would come back as str"),
    (dict[int | str, int], {1: 1, "1": 1}, "would lose entries"),
    # something would be lost
    (Point, Point3(1, 2.0, 3.0), "Point3 would come back as Point"),
    (list[Point], [Point3(1)], r"\[0\] Point3 would come back as Point"),
    (Shifting, Shifting(1), r"\.x would come back changed"),
    (Movie, {"title": "x", "extra": 1}, "would lose entries"),
    (dict[str, int], tagged(), "Tagged would come back as dict"),
    (str, Text("x"), "Text is not a type that JSON can hold"),
    (float, 2**53 + 1, "would come back changed"),
    (list[float], [2**53 + 1], r"\[0\] would come back changed"),
    (float, 10**400, "must be float"),
    (int, 10**5000, "must be int"),
    (datetime, datetime(2026, 1, 1, tzinfo=Odd()), "would lose its time zone"),
    (time, time(1, tzinfo=ZoneInfo("Europe/Berlin")), "would lose its time zone"),
    # JSON has no such thing
    (float, math.nan, "is nan, which JSON cannot hold"),
    (float, -math.inf, "is -inf, which JSON cannot hold"),
    (float | None, math.nan, "is nan, which JSON cannot hold"),
    (list[float], [math.inf], r"at `\$\[0\]`"),
    (list[float | None], [math.nan], r"\[0\] float would come back as NoneType"),
    (Any, math.nan, "is nan, which JSON cannot hold"),
    (Any, {"a": math.inf}, "float would come back as NoneType"),
    (str, "\ud800", "lone surrogate"),
    (Any, {"\udfff": 1}, "lone surrogate"),
    (list[str], ["a", "\ud83d"], "lone surrogate"),
    (Any, object(), "object is not a type that JSON can hold"),
    (Any, Path(), "PosixPath is not a type|WindowsPath is not a type"),
    (Any, print, "is not a type that JSON can hold"),
    (Any, Liar(), "Liar is not a type that JSON can hold"),
    (int, Liar(), "Liar is not a type that JSON can hold"),
    (Any, endless(), "nested too deeply"),
    (Any, deep(5000), "nested too deeply"),
    (Any, {None: 1}, "NoneType is not a type that JSON can hold as a key"),
    (int, msgspec.UNSET, "is not a type that JSON can hold"),
    (Any, msgspec.Raw(b"1"), "Raw would come back as int"),
    (Any, msgspec.Raw(b'1,"x":2'), "cannot be stored: JSON is malformed"),
]


@pytest.mark.parametrize("case", range(len(BAD)), ids=lambda n: f"{BAD[n][0]}-{BAD[n][2]}"[:60])
def test_arguments_that_would_change_are_refused_by_name(case: int) -> None:
    """The error names the parameter and the expected type; it is a TypeError too."""
    annotation, value, reason = BAD[case]

    def task(fine: int, x: Any, more: str = "") -> None: ...

    task.__annotations__["x"] = annotation
    with pytest.raises(TypeError, match=r"^MILL-013 job\(x\): "):
        signature(task).encode((1,), {"x": value, "more": "m"})
    with pytest.raises(BadPayload, match=reason) as refused:
        signature(task).encode((1, value), {})
    assert ("job", "x") == (refused.value.task, refused.value.parameter)
    assert refused.value.reason in str(refused.value)
    with pytest.raises(BadResult, match=r"^the result of job "):
        one(annotation).encode_result(value)


def test_the_error_names_the_bad_argument_wherever_it_stands() -> None:
    """Positional, variadic and keyword arguments are named alike."""

    def task(a: int, b: str, *rest: int, c: float = 1.0, **more: int) -> None: ...

    job = signature(task)
    assert "a" == refusal(job, "1", "b").parameter
    assert "b" == refusal(job, 1, 2).parameter
    assert "rest" == refusal(job, 1, "b", 3, "4").parameter
    assert "c" == refusal(job, 1, "b", c="c").parameter
    assert "more" == refusal(job, 1, "b", d="d").parameter


def test_a_user_class_that_raises_is_a_refusal() -> None:
    """Whichever exception the class raises, the caller gets BadPayload."""

    @dataclasses.dataclass
    class Picky:
        x: int

        def __post_init__(self) -> None:
            if self.x > 1:
                raise KeyError("too picky")

    picky = Picky(1)
    picky.x = 2
    job = one(Picky)
    assert "x" == refusal(job, picky).parameter
    with pytest.raises(Unreadable, match="too picky"):
        job.decode(b'{"x":{"x":2}}')


def test_a_refusal_without_a_culprit_names_the_task() -> None:
    """A class that raises only once leaves no argument to name."""
    moods = iter([True])

    @dataclasses.dataclass
    class Moody:
        x: int

        def __post_init__(self) -> None:
            if self.x and next(moods, False):
                raise KeyError("not now")

    moody = Moody(0)
    moody.x = 1
    error = refusal(one(Moody), moody)
    assert (None, "cannot be stored: 'not now'") == (error.parameter, error.reason)


# ---- binding ---------------------------------------------------------------------------------


def plain(a: int, b: str = "b") -> None: ...
def apart(a: int, /, b: int, *, c: int, d: int = 4) -> None: ...
def nothing() -> None: ...


CALLS: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], str | None, str]] = [
    (plain, (), {}, "a", "missing a required argument: 'a'"),
    (plain, (1, "2", 3), {}, None, "too many positional"),
    (plain, (1,), {"z": 1}, "z", "unexpected keyword argument 'z'"),
    (plain, (1,), {"a": 1}, "a", "multiple values for argument 'a'"),
    (apart, (1, 2), {}, "c", "missing a required"),
    (apart, (1, 2, 3), {}, None, "too many positional"),
    (apart, (), {"a": 1, "b": 2, "c": 3}, "a", "positional.only"),
    (nothing, (1,), {}, None, "too many positional"),
    (nothing, (), {"a": 1}, "a", "unexpected keyword argument 'a'"),
]


@pytest.mark.parametrize(("fn", "args", "kwargs", "parameter", "words"), CALLS)
def test_a_call_that_does_not_fit_is_refused_in_pythons_words(
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameter: str | None,
    words: str,
) -> None:
    """Arguments bind as in a call, and the parameter at fault is named."""
    with pytest.raises(TypeError):
        fn(*args, **kwargs)
    with pytest.raises(BadPayload, match=words) as refused:
        signature(fn).encode(args, kwargs)
    assert parameter == refused.value.parameter


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "decoded"),
    [
        (nothing, (), {}, ([], {})),
        (plain, (1,), {}, ([1, "b"], {})),
        (plain, (), {"b": "c", "a": 1}, ([1, "c"], {})),
        (apart, (1, 2), {"c": 3}, ([1, 2], {"c": 3, "d": 4})),
        (apart, (1,), {"d": 5, "c": 3, "b": 2}, ([1, 2], {"c": 3, "d": 5})),
        (lambda x, y=(1, 2): (x, y), (0,), {}, ([0, (1, 2)], {})),
        (functools.partial(plain, b="z"), (1,), {}, ([1], {"b": "z"})),
        ("".join, ([1],), {}, ([[1]], {})),
    ],
)
def test_decoded_arguments_are_ready_for_the_call(
    fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], decoded: Any
) -> None:
    """Each argument is back in its place, and defaults are the function's own."""
    job = signature(fn)
    assert decoded == job.decode(job.encode(args, kwargs))


def test_methods_and_callable_objects_are_functions_too() -> None:
    """The arguments of the caller count, not `self`."""

    class Greeter:
        def greet(self, name: str) -> str: ...  # type: ignore[empty-body]
        def __call__(self, count: int) -> None: ...

    assert ("name",) == signature(Greeter().greet).parameters
    assert "count" == refusal(signature(Greeter()), "1").parameter


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    """functools.wraps keeps the signature."""

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert ("a", "b") == signature(wrapper).parameters
    assert "a" == refusal(signature(wrapper), "1").parameter


def test_arguments_have_their_names_in_the_payload() -> None:
    """A payload is a readable JSON object; omitted arguments are not in it."""
    assert b'{"a":1984,"b":"acme"}' == signature(plain).encode((1984, "acme"), {})
    assert b'{"a":1984}' == signature(plain).encode((1984,), {})
    assert b"{}" == signature(nothing).encode((), {})


def test_a_parameter_added_with_a_default_reads_old_payloads() -> None:
    """Under a backlog, the new parameter has its default."""

    def later(a: int, b: str = "b", *, new: list[int] = [1]) -> None: ...  # noqa: B006

    assert ([1, "x"], {"new": [1]}) == signature(later).decode(b'{"a":1,"b":"x"}')


@pytest.mark.parametrize(
    "stored",
    [
        b'{"a":1,"gone":2}',
        b'{"b":"x"}',
        b'{"a":"1"}',
        b'{"a":1.5}',
        b"{}",
        b"[1]",
        b"null",
        b"",
        b"{",
        b'{"a":1}x',
        b'\xff\xfe{"a":1}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"9" * 100_000 + b"}",
        b'{"a":1e999}',
        b'{"a":NaN}',
        b'{"a":1,"b":"\\ud800"}',
        b'{"a":1,"b":null}',
    ],
)
def test_a_payload_the_function_does_not_take_is_unreadable(stored: bytes) -> None:
    """An argument too many, too few or of another type, and bytes that are no JSON."""
    with pytest.raises(Unreadable):
        signature(plain).decode(stored)


@pytest.mark.parametrize("stored", [b"[]", b'{"a":1}', b"", b"{}{}", b"null", b'{"a":' * 100_000])
def test_a_function_without_parameters_takes_the_empty_object_only(stored: bytes) -> None:
    """Nothing else is a call without arguments."""
    with pytest.raises(Unreadable):
        signature(nothing).decode(stored)
    assert ([], {}) == signature(nothing).decode(b" { } ")


def test_a_name_stored_twice_is_unreadable() -> None:
    """Keyword arguments that would collide with a parameter never reach the function."""

    def task(a: int, /, b: int, **more: int) -> None: ...

    assert ([1, 2], {"a": 3}) == signature(task).decode(b'{"a":1,"b":2,"more":{"a":3}}')
    with pytest.raises(Unreadable, match="stored twice: b"):
        signature(task).decode(b'{"a":1,"b":2,"more":{"b":3}}')


FUZZED = [signature(fn) for fn in (plain, apart, nothing, lambda x: x, lambda *a, **k: (a, k))] + [
    one(kind) for kind in (Any, Line, Tree, list[Line], dict[date, Decimal], Cat | Dog, object)
]
crafted = st.lists(
    st.sampled_from(
        [
            r"{",
            r"}",
            r"[",
            r"]",
            r":",
            r",",
            r'"',
            r"x",
            r"a",
            r"b",
            r"k",
            r'"x":',
            r'"a":',
            r'"ends":',
            r"1",
            r"-",
            r"e9",
            r".",
            r"null",
            r"true",
            r"\u",
            r"\ud800",
            r"NaN",
            r'"Cat"',
        ]
    ).map(str.encode)
    | st.binary(max_size=3),
    max_size=20,
).map(b"".join)


@given(
    st.sampled_from(FUZZED),
    st.binary()
    | crafted
    | st.just(b'{"x":')
    | json_values.map(lambda value: msgspec.json.encode({"x": value})),
)
@example(FUZZED[3], b'{"x":' + b"[" * 200_000)
@example(FUZZED[3], b'{"x":' + b'{"x":' * 200_000)
@example(FUZZED[6], b'{"x":{"value":1,"kids":[' * 50_000)
@example(FUZZED[8], b'{"x":{"2026-01-01":"1e999999999999"}}')
def test_crafted_bytes_are_read_or_unreadable(job: Signature, stored: bytes) -> None:
    """No bytes raise anything else, and decoded arguments fit the function's parameters."""
    for read in (job.decode, job.decode_result):
        try:
            read(stored)
        except Unreadable:
            continue


# ---- declaring -------------------------------------------------------------------------------


@dataclasses.dataclass
class Early:
    seed: dataclasses.InitVar[int]


@pytest.mark.parametrize(
    "annotation",
    [
        complex,
        Path,
        type,
        print,
        Callable[[], int],
        list[complex],
        dict[str, Path | None],
        Liar,
        Text,
        OrderedDict[str, int],
        int | str | bytes,
        list[int] | tuple[int, ...],
        Point | Line,
        Point | dict[str, int],
        date | datetime,
        dict[bool, int],
        dict[tuple[int, int], int],
        dict[str | None, int],
        msgspec.Raw,
        Literal[b"x"],
        Early,
        Enum,
        7,
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_where_it_is_declared(annotation: Any) -> None:
    """Task and parameter are named; a return type is a parameter called return."""

    def task(fine: int, x: Any) -> Any: ...

    task.__annotations__["x"] = annotation
    with pytest.raises(ConfigError, match=r"^MILL-003 job\(x\)="):
        signature(task)
    task.__annotations__ = {"return": annotation}
    with pytest.raises(ConfigError, match=r"^MILL-003 job\(return\)="):
        signature(task)


def test_a_parameter_with_two_underscores_is_refused() -> None:
    """Python itself renames such names in places."""
    with pytest.raises(ConfigError, match="two underscores"):
        signature(lambda __x: None)


def test_a_callable_without_a_signature_is_refused() -> None:
    """Some builtins have no signature."""
    with pytest.raises(ConfigError, match="has no signature"):
        signature(type)


def test_a_function_that_never_returns_needs_no_result_type() -> None:
    """NoReturn counts as no result."""

    def task() -> NoReturn: ...  # type: ignore[empty-body]

    assert b"null" == signature(task).encode_result(None)


# ---- context ---------------------------------------------------------------------------------


def test_the_context_is_no_argument() -> None:
    """A first parameter of a context type is filled by the worker."""

    def task(ctx: Context, a: int) -> None: ...
    def generic(ctx: SyncContext[int], a: int) -> None: ...

    for fn in (task, generic):
        job = signature(fn, context_types=(Context,))
        assert (True, ("a",)) == (job.wants_context, job.parameters)
        assert ([1], {}) == job.decode(job.encode((1,), {}))
    assert not signature(plain, context_types=(Context,)).wants_context
    assert not signature(nothing, context_types=(Context,)).wants_context


def test_the_context_is_first_or_refused() -> None:
    """Elsewhere, or twice, or by keyword only, it is a mistake."""

    def second(a: int, ctx: Context) -> None: ...
    def twice(a: Context, ctx: Context) -> None: ...
    def word(*, ctx: Context) -> None: ...

    for fn in (second, twice, word):
        with pytest.raises(ConfigError, match=r"job\(ctx\)='Context' must be the first parameter"):
            signature(fn, context_types=(Context,))


# ---- one argument ----------------------------------------------------------------------------


def test_an_argument_is_found_wherever_it_was_given() -> None:
    """By place, by name, or by default; otherwise it is missing."""

    def task(a: int, b: str = "b", *rest: int, c: int = 3, d: int, **more: int) -> None: ...

    def find(name: str, *args: object, **kwargs: object) -> object:
        return signature(task).argument(args, kwargs, name)

    assert 1 == find("a", 1)
    assert 1 == find("a", a=1)
    assert MISSING is find("a")
    assert ("b", "x") == (find("b", 1), find("b", 1, "x"))
    assert (3, 4) == (find("c"), find("c", c=4))
    assert MISSING is find("d", 1, "b", 9)
    assert 7 == find("other", other=7)
    assert MISSING is find("unknown", 1)


# ---- results and sizes -----------------------------------------------------------------------


def test_a_result_of_another_type_than_annotated_is_bad() -> None:
    """The reason names the annotated type and the returned one."""

    def task() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(BadResult, match="the result of job must be int, not str"):
        signature(task).encode_result("1")
    with pytest.raises(Unreadable):
        signature(task).decode_result(b'"1"')


def test_payloads_have_a_largest_size() -> None:
    """At the limit they are stored, one byte more and they are not."""
    job = one(str)
    around = len(b'{"x":""}')
    assert LARGEST == len(job.encode(("x" * (LARGEST - around),), {}))
    with pytest.raises(PayloadTooLarge) as refused:
        job.encode(("x" * (LARGEST - around + 1),), {})
    assert ("job", LARGEST + 1, LARGEST) == (
        refused.value.task,
        refused.value.size,
        refused.value.limit,
    )
    job.largest = 10
    assert b'"12345678"' == job.encode_result("12345678")
    with pytest.raises(BadResult, match="has 11 bytes, the limit is 10"):
        job.encode_result("123456789")


# ---- batches ---------------------------------------------------------------------------------


def test_a_batch_task_stores_one_item_at_a_time() -> None:
    """The function takes and gives lists; a payload is one item, a result is one item's."""

    def task(ctx: Context, points: list[Point]) -> list[str | Failed]: ...  # type: ignore[empty-body]

    job = signature(task, batch=True, context_types=(Context,), outcome_types=(Failed,))
    payload = job.encode((Point(1),), {})
    assert b'{"points":{"x":1,"y":0.0}}' == payload
    assert ([Point(1)], {}) == job.decode(payload)
    assert "done" == job.decode_result(job.encode_result("done"))
    assert "points" == refusal(job, [Point(1)]).parameter
    assert Point(1) == job.argument((Point(1),), {}, "points")
    with pytest.raises(BadResult):
        job.encode_result(3)


def test_a_batch_task_may_leave_its_types_open() -> None:
    """Without annotations, and with a bare list, an item is anything that JSON can hold."""

    def bare(items: list, /) -> list: ...  # type: ignore[type-arg, empty-body]

    for fn in (lambda items: items, bare):
        job = signature(fn, batch=True)
        assert ([[1, "a"]], {}) == job.decode(b'{"items":[1,"a"]}')
        assert b'{"a":1}' == job.encode_result({"a": 1})


def test_a_batch_task_that_gives_only_outcomes_has_no_results() -> None:
    """A union of outcomes alone has no result type."""

    def task(items: list[int]) -> list[Failed]: ...  # type: ignore[empty-body]
    def either(items: Sequence[int]) -> list[int | str | Failed]: ...  # type: ignore[empty-body]

    only = signature(task, batch=True, outcome_types=(Failed,))
    assert b"null" == only.encode_result(None)
    both = signature(either, batch=True, outcome_types=(Failed,))
    assert (b"1", b'"a"') == (both.encode_result(1), both.encode_result("a"))


def test_a_batch_task_takes_and_gives_lists() -> None:
    """Any other shape is refused by name."""

    def number(items: int) -> list[int]: ...  # type: ignore[empty-body]
    def result(items: list[int]) -> int: ...  # type: ignore[empty-body]
    def two(items: list[int], more: int) -> list[int]: ...  # type: ignore[empty-body]
    def spread(*items: int) -> list[int]: ...  # type: ignore[empty-body]

    for fn, blamed in (
        (number, r"job\(items\)"),
        (result, r"job\(return\)"),
        (two, "batch task job='items, more'"),
        (spread, "batch task job"),
        (nothing, "batch task job"),
    ):
        with pytest.raises(ConfigError, match=blamed):
            signature(fn, batch=True)


# ---- fingerprints ----------------------------------------------------------------------------


def test_a_fingerprint_never_changes() -> None:
    """It is stored, so its value is part of the format."""
    assert 0 <= fingerprint("review", b"{}") < 1 << 63
    assert 7362900740589161926 == fingerprint("review", b'{"pr":1984}')
    assert 924777302577370760 == fingerprint("review", b'{"pr":{"b":1.5e300,"a":[{}]}}')
    assert 924777302577370760 == fingerprint("review", b'{"pr":{"a":[{}],"b":1.5e300}}')


def test_the_order_of_a_dict_makes_no_other_call() -> None:
    """The same arguments under one idempotency key are no conflict, however they were put."""

    def task(**more: Any) -> None: ...

    job = signature(task)
    one_way = job.encode((), {"a": 1, "b": {"c": 2, "d": 3}})
    other_way = job.encode((), {"b": {"d": 3, "c": 2}, "a": 1})
    assert one_way != other_way
    assert fingerprint("job", one_way) == fingerprint("job", other_way)


@pytest.mark.parametrize("payload", [b"{{", b'{"x":' * 100_000, b'{"x":{"a":\xff}}'])
def test_any_bytes_have_a_fingerprint(payload: bytes) -> None:
    """Unreadable payloads differ by their bytes."""
    assert fingerprint("job", payload) != fingerprint("job", payload + b" ")


@given(st.text(string.ascii_letters), st.binary(), st.text(string.ascii_letters), st.binary())
@example("ab", b"c", "a", b"bc")
@example("1:a", b"", "a", b"")
def test_different_calls_have_different_fingerprints(a: str, b: bytes, c: str, d: bytes) -> None:
    """Name and payload both count, and where one ends."""
    assert ((a, b) == (c, d)) == (fingerprint(a, b) == fingerprint(c, d))


# ---- other libraries -------------------------------------------------------------------------


def test_pydantic_is_never_imported() -> None:
    """A program without pydantic does not load it."""
    code = (
        "import sys; from millpond.pool.payload.signature import Signature\n"
        "job = Signature(lambda x: x, name='job'); job.decode(job.encode((1,), {}))\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (0, b"") == (answer.returncode, answer.stderr)
