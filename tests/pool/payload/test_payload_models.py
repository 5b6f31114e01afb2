"""Models of other libraries as payloads, where those are installed."""

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import pytest

from millpond.errors import BadPayload, ConfigError
from millpond.pool.payload.signature import BadResult, Signature, Unreadable

T = TypeVar("T")


def one(annotation: Any) -> Signature:
    """The signature of a function with one parameter `x` that gives the same type back."""

    def task(x: Any = None) -> Any: ...

    task.__annotations__ = {"x": annotation, "return": annotation}
    return Signature(task, name="job")


def trip(annotation: Any, value: object) -> object:
    """Return a value after encoding and decoding, as an argument and as a result."""
    job = one(annotation)
    (back,), _ = job.decode(job.encode((value,), {}))
    assert back == job.decode_result(job.encode_result(value))
    assert type(value) is type(back)
    return back


def refused(annotation: Any, value: object) -> str:
    """Return the error message of a refused value."""
    with pytest.raises(BadPayload) as error:
        one(annotation).encode((value,), {})
    with pytest.raises(BadResult):
        one(annotation).encode_result(value)
    assert "x" == error.value.parameter
    return error.value.reason


class TestPydantic:
    """Pydantic 2 models."""

    @pytest.fixture(autouse=True)
    def _pydantic(self) -> None:
        self.pydantic = pytest.importorskip("pydantic")

    def test_a_model_comes_back_as_itself(self) -> None:
        """Nested, aliased, with types that JSON does not have."""
        field = self.pydantic.Field

        class Part(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            id: UUID
            price: Decimal
            tags: set[str]

        class Order(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            placed: datetime = field(alias="placedAt")
            parts: list[Part]
            raw: bytes = b""
            size: tuple[int, int] | None = None

        part = Part(id=UUID(int=1), price=Decimal("1.10"), tags={"a", "b"})
        order = Order(placedAt=datetime(2026, 1, 1, tzinfo=UTC), parts=[part], size=(1, 2))
        assert order == trip(Order, order)
        assert [order, order] == trip(list[Order], [order, order])
        assert {"a": order} == trip(dict[str, Order], {"a": order})
        assert order == trip(Order | None, order)
        assert trip(Order | None, None) is None

        @dataclasses.dataclass
        class Holder:
            part: Part

        assert Holder(part) == trip(Holder, Holder(part))

    def test_root_generic_and_extra_models_come_back(self) -> None:
        """So do the less common kinds."""

        class Names(self.pydantic.RootModel[list[str]]):  # type: ignore[misc, name-defined]
            pass

        class Page(self.pydantic.BaseModel, Generic[T]):  # type: ignore[misc, name-defined]
            items: list[T]

        class Open(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            model_config = self.pydantic.ConfigDict(extra="allow")
            x: int

        assert Names(["a"]) == trip(Names, Names(["a"]))
        assert Page[int](items=[1]) == trip(Page[int], Page[int](items=[1]))
        assert Open(x=1, y=2) == trip(Open, Open(x=1, y=2))

    def test_a_model_that_would_lose_data_is_refused(self) -> None:
        """A subclass, a secret, a float unknown to JSON, a field that encoding omits."""
        field, secret = self.pydantic.Field, self.pydantic.SecretStr

        class Base(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            x: float = 0.0
            password: secret = secret("")  # type: ignore[valid-type]
            hidden: int = field(default=0, exclude=True)
            anything: Any = None

        class Sub(Base):
            y: int = 0

        assert "Sub would come back as Base" == refused(Base, Sub())
        assert ".password would come back changed" == refused(Base, Base(password="p"))  # noqa: S106
        assert ".hidden would come back changed" == refused(Base, Base(hidden=1))
        assert "Base" in refused(Base, Base(x=float("nan")))
        assert "tuple would come back as list" in refused(Base, Base(anything=(1,)))
        assert "dict would come back as Base" == refused(Base, {"x": 1.0})
        assert "must be" in refused(Base, 3)
        assert "would come back as dict" in refused(Any, Base())

    def test_a_stored_model_that_no_longer_fits_is_unreadable(self) -> None:
        """The model's own validation decides."""

        class Strict(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            model_config = self.pydantic.ConfigDict(extra="forbid")
            x: int

        for stored in (b'{"x":{"x":"a"}}', b'{"x":{"x":1,"y":2}}', b'{"x":[' + b"[" * 99_999):
            with pytest.raises(Unreadable):
                one(Strict).decode(stored)

    def test_a_union_of_models_is_refused_where_it_is_declared(self) -> None:
        """Their JSON may be the same."""

        class A(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            x: int

        class B(self.pydantic.BaseModel):  # type: ignore[misc, name-defined]
            x: int

        with pytest.raises(ConfigError, match=r"job\(x\)"):
            one(A | B)


class TestAttrs:
    """Classes made with attrs."""

    @pytest.fixture(autouse=True)
    def _attrs(self) -> None:
        self.attrs = pytest.importorskip("attrs")

    def test_an_attrs_class_comes_back_as_itself(self) -> None:
        """Slots and all; a subclass does not pass for its base."""

        @self.attrs.define
        class Given:
            x: int
            y: list[float] = self.attrs.field(factory=list)

        @self.attrs.define
        class Derived(Given):
            z: int = 0

        point: Any = Given
        sub: Any = Derived
        assert point(1, [2.0]) == trip(point, point(1, [2.0]))
        assert "Derived would come back as Given" == refused(point, sub(1))
