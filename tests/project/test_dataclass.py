"""The package's dataclasses equal the standard library's, except that methods are generated later."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mgx_numba.dataclass import dataclass

ROOT = Path(__file__).resolve().parents[2]


def _pair(define: Any, **options: bool) -> tuple[type, type]:
    """A class by the package's decorator, and by the standard library's."""
    return define(dataclass(**options)), define(dataclasses.dataclass(**options))


def _point(decorate: Any) -> type:
    @decorate
    class Point:
        """Of all kinds of fields."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 2.0
        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)
        total: float = field(init=False, default=0.0)
        seen: list[int] = field(init=False, default_factory=list)
        last: int = field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    return Point


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3.0), {"last": 9}),
    ((), {"x": 1, "names": ["a"]}),
    ((1, float("nan")), {}),
    ((1,), {"note": "other"}),
]


@pytest.mark.parametrize("frozen", [False, True])
def test_instances_are_made_shown_and_compared_alike(frozen: bool) -> None:
    ours, standard = _pair(_point, frozen=frozen)
    made = [[cls(*args, **kwargs) for args, kwargs in CALLS] for cls in (ours, standard)]
    assert [repr(one) for one in made[0]] == [repr(one) for one in made[1]]
    assert [vars(one) for one in made[0]][:3] == [vars(one) for one in made[1]][:3]
    equal = [[a == b for a in group for b in group] for group in made]
    assert equal[0] == equal[1]
    assert made[0][0] != made[1][0]  # of another class
    assert made[0][0].names is not ours(1).names
    assert ours.__match_args__ == standard.__match_args__


@pytest.mark.parametrize("args, kwargs", [((), {}), ((1, 2, [], "", 5), {}), ((1,), {"z": 2}), ((1,), {"total": 1})])
def test_wrong_arguments_are_named_alike(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ours, standard = _pair(_point, frozen=True)
    with pytest.raises(TypeError) as expected:
        standard(*args, **kwargs)
    for _ in range(2):  # the method that is written first, and then itself
        with pytest.raises(TypeError, match=re.escape(str(expected.value))):
            ours(*args, **kwargs)


def _hashable(decorate: Any) -> type:
    @decorate
    class Hashable:
        """Of which one field is not compared."""

        a: int
        b: tuple[int, ...] = ()
        c: str = field(default="", compare=False)
        d: str = field(default="", hash=False)

    return Hashable


def test_hashes_are_those_of_the_fields() -> None:
    ours, standard = _pair(_hashable, frozen=True)
    for args in [(1,), (1, (2, 3)), (1, (), "c"), (1, (), "", "d")]:
        assert hash(ours(*args)) == hash(standard(*args))
    assert len({ours(1), ours(1), ours(1, (), "c"), ours(2)}) == 2


@pytest.mark.parametrize("options", [{}, {"eq": False}, {"frozen": True}, {"frozen": True, "eq": False}])
def test_what_can_be_hashed_is_the_same(options: dict[str, bool]) -> None:
    ours, standard = _pair(_hashable, **options)
    assert (ours.__hash__ is None) == (standard.__hash__ is None)
    assert (ours(1) == ours(1)) == (standard(1) == standard(1))


def test_frozen_instances_stay_as_they_are() -> None:
    ours, standard = _pair(_point, frozen=True)
    for cls in (ours, standard):
        one = cls(1)
        for name in ("x", "unknown"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
                setattr(one, name, 2)
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
                delattr(one, name)


def test_a_subclass_without_fields_may_have_attributes() -> None:
    class Child(_point(dataclass(frozen=True))):  # type: ignore[misc]
        pass

    child = Child(1)
    child.other = 2
    assert child.other == 2 and child.x == 1 and child != _point(dataclass(frozen=True))(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.x = 2


def test_a_subclass_of_more_fields_has_its_own_methods() -> None:
    def define(decorate: Any) -> type:
        @decorate
        class More(_hashable(decorate)):  # type: ignore[misc]
            """One field more."""

            e: int = 5

        return More

    ours, standard = _pair(define, frozen=True)
    assert repr(ours(1)) == repr(standard(1)) and hash(ours(1)) == hash(standard(1))
    assert ours(1) == ours(1) != ours(1, e=6)
    parent = ours.__mro__[1]
    assert parent(1) != ours(1) and hash(parent(1)) == hash(parent(1)) and repr(parent(1)).count("e=") == 0


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True)
    class Own:
        """With methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 3

        def __repr__(self) -> str:
            return "own"

        @cached_property
        def kept(self) -> int:
            return self.a + 1

    assert Own(1) == Own(2) and hash(Own(5)) == 3 and repr(Own(1)) == "own" and Own(1).kept == 2


def test_slots() -> None:
    ours, standard = _pair(_hashable, slots=True, eq=False)
    one = ours(1)
    assert ours.__slots__ == standard.__slots__ and not hasattr(one, "__dict__")
    one.a = 2
    assert repr(one) == repr(standard(2)) and one != ours(2)
    with pytest.raises(TypeError, match="frozen or has slots"):
        dataclass(frozen=True, slots=True)


@dataclass(frozen=True)
class Kept:
    """Found by its name."""

    a: int
    inner: Any = None


def test_what_dataclasses_and_copies_do() -> None:
    one = Kept(1, Kept(2))
    assert dataclasses.replace(one, a=3) == Kept(3, Kept(2))
    assert dataclasses.asdict(one) == {"a": 1, "inner": {"a": 2, "inner": None}}
    assert [f.name for f in dataclasses.fields(Kept)] == ["a", "inner"] and dataclasses.is_dataclass(one)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
    before = vars(one).copy()
    assert hash(one) == hash(copy.copy(one)) == hash(dataclasses.replace(one))
    for other in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert vars(other) == before, "a known hash does not travel: other processes hash strings otherwise"
    circle: list[Any] = []
    circle.append(Kept(1, circle))
    assert repr(circle) == "[Kept(a=1, inner=[...])]"


def test_the_package_has_no_other_dataclasses() -> None:
    own = ROOT / "mgx_numba" / "dataclass.py"
    pattern = re.compile(r"^from dataclasses import .*\bdataclass\b|dataclasses\.dataclass\b", re.MULTILINE)
    found = [path for path in (ROOT / "mgx_numba").rglob("*.py") if path != own and pattern.search(path.read_text())]
    assert found == []


def test_the_first_instances_are_made_as_later_ones() -> None:
    """The first instances are initialised without a generated ``__init__``."""

    @dataclass(frozen=True)
    class Own:
        a: int
        b: list[int] = field(default_factory=list)
        c: int = field(init=False, default=7)
        d: str = "d"

        def __post_init__(self) -> None:
            object.__setattr__(self, "c", self.a + 1)

    for _ in range(100):
        made = Own(1, d="x")
        assert (made.a, made.b, made.c, made.d) == (1, [], 2, "x") and made.b is not Own(1).b
        for wrong, named in (((), {}), ((1, [], "d", 4), {}), ((1,), {"a": 2}), ((1,), {"c": 2}), ((1,), {"e": 2})):
            with pytest.raises(TypeError):
                Own(*wrong, **named)
