"""Replacement of `dataclasses.dataclass` that finds the fields at their first use, and generates methods when called.

The standard library generates and compiles the methods when a class is defined: a quarter of a millisecond for a frozen
class. Of this package's four hundred classes a process instantiates few, and compares instances of fewer.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import reprlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .structural import same

C = TypeVar("C", bound=type)
_Arguments: TypeAlias = "tuple[dict[str, None], int, dict[str, object], list[tuple[str, Callable[[], object]]], bool]"
_MARKS = re.compile("ClassVar|InitVar|KW_ONLY")
_lock = threading.RLock()
_PLAIN_CALLS = 32
"""Instances of a class that are made before its ``__init__`` is generated, which takes 0.1 to 0.2 ms on Zen 5; setting
fields without it takes 2 to 4 us."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False) -> object:
        """Return a class decorator like the standard library's, with some of its options; `dataclasses.fields` works.

        Subclasses of a frozen class need this decorator, too: the standard decorator does not recognise frozen bases.

        Raises:
            TypeError: ``frozen`` and ``slots`` are both set, a combination that this package does not need.
        """
        if frozen and slots:
            raise TypeError("a dataclass of this package is frozen or has slots")

        def made(cls: type) -> type:
            if slots or any(isinstance(value, dataclasses.Field) for value in vars(cls).values()):
                return _with_methods(_with_fields(cls, slots), frozen, eq)
            # Class attributes are the defaults already.
            cls.__dataclass_fields__ = _FieldsLater(cls)
            cls.__doc__ = cls.__doc__ or cls.__name__
            return _with_methods(cls, frozen, eq)

        return made if cls is None else made(cls)


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Standard:
    """A class that the standard decorator has decorated."""


_PARAMETERS = _Standard.__dataclass_params__  # type: ignore[attr-defined]
"""What the standard decorator records of its arguments, for those that decorate a subclass."""


class _FieldsLater:
    """A class attribute that on its first access is replaced by the fields of its class."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: object) -> object:
        with _lock:
            if self._cls.__dict__["__dataclass_fields__"] is self and not _add_plain_fields(self._cls):
                _with_fields(self._cls, False)
        return self._cls.__dict__["__dataclass_fields__"]


def _add_plain_fields(cls: Any) -> bool:
    """Add the fields of a class whose annotations are fields or class variables, as the standard decorator does.

    Returns False, with nothing done, for other annotations. The standard decorator takes three times as long, mostly to
    prepare methods.
    """
    found: dict[str, dataclasses.Field[object]] = {}
    for base in cls.__mro__[:0:-1]:
        found.update(getattr(base, "__dataclass_fields__", {}) if "__dataclass_fields__" in base.__dict__ else {})
    for name, text in vars(cls).get("__annotations__", {}).items():
        if not isinstance(text, str) or "InitVar" in text or "KW_ONLY" in text:
            return False
        if "ClassVar" in text:
            continue
        made: Any = dataclasses.field(default=getattr(cls, name, dataclasses.MISSING))
        made.name, made.type, made.kw_only = name, text, False
        made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
        found[name] = made
    cls.__dataclass_fields__ = found
    cls.__dataclass_params__ = _PARAMETERS
    return True


def _with_fields(cls: Any, slots: bool) -> type:
    """Apply the standard decorator without its most expensive work.

    The standard decorator searches the text of each annotation for ``ClassVar``, ``InitVar`` and ``KW_ONLY``: other
    annotations are hidden from it. It gives a class without a docstring its signature as docstring: here the class name
    is used.
    """
    texts = vars(cls).get("__annotations__", {})
    plain = {name: text for name, text in texts.items() if isinstance(text, str) and not _MARKS.search(text)}
    texts.update(dict.fromkeys(plain, object))
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    texts.update(plain)
    for name, text in plain.items():
        cls.__dataclass_fields__[name].type = text
    return cls


def _with_methods(cls: Any, frozen: bool, eq: bool) -> type:
    """Add the methods that the class does not define itself."""
    own = cls.__dict__
    hashes = own.get("__hash__") is not None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse_set, _refuse_delete
    if "__init__" not in own:
        cls.__init__ = _InitLater(cls, "__init__", _init)
    if "__repr__" not in own:
        cls.__repr__ = _repr
    if eq and "__eq__" not in own:
        cls.__eq__ = _MethodLater(cls, "__eq__", _eq)
    if eq and not hashes:
        if frozen:
            cls.__hash__ = _MethodLater(cls, "__hash__", _hash)
            cls.__getstate__ = _state
        else:
            cls.__hash__ = None
    return cls


class _MethodLater:
    """A method that is generated at its first use, and then takes the place of this descriptor.

    A descriptor is one object to the garbage collector; a function with its closure is a dozen.
    """

    __slots__ = ("_cls", "_name", "_write")

    def __init__(self, cls: type, name: str, write: Callable[[type], Callable[..., object]]) -> None:
        self._cls, self._name, self._write = cls, name, write

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        method = self._write(self._cls)
        method.__qualname__ = f"{self._cls.__qualname__}.{self._name}"
        if self._cls.__dict__.get(self._name) is self:
            setattr(self._cls, self._name, method)
        return method if instance is None else method.__get__(instance)


class _InitLater(_MethodLater):
    """``__init__``, which is generated after `_PLAIN_CALLS` calls, or for arguments that do not fit."""

    __slots__ = ("_calls", "_known")

    def __init__(self, cls: type, name: str, write: Callable[[type], Callable[..., object]]) -> None:
        super().__init__(cls, name, write)
        self._calls = 0
        self._known: _Arguments | None = None

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        self._calls += 1
        if instance is None or self._calls > _PLAIN_CALLS:
            return super().__get__(instance, owner)
        return functools.partial(self._start, instance)

    def _start(self, instance: object, /, *args: object, **kwargs: object) -> None:
        if not self._plain(instance, args, kwargs):
            super().__get__(instance)(*args, **kwargs)

    def _plain(self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Initialise an instance from arguments; return False, with nothing done, for arguments that do not fit."""
        if self._known is None:
            self._known = _arguments(self._cls)
        names, count, defaults, factories, slots = self._known
        positional = dict(zip(names, args))
        values = {**defaults, **positional, **kwargs}
        if len(positional) != len(args):
            return False
        if kwargs and not (kwargs.keys() <= names.keys() and positional.keys().isdisjoint(kwargs)):
            return False
        for name, factory in factories:
            if name not in values:
                values[name] = factory()
        if len(values) != count:  # a required argument is missing
            return False
        if slots:
            for name, value in values.items():
                object.__setattr__(instance, name, value)
        else:
            instance.__dict__.update(values)
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()
        return True


def _arguments(cls: type) -> _Arguments:
    """Return the names of positional fields in order, the number of fields that are set, default values, default
    factories, and whether some field may be a slot."""
    fields = dataclasses.fields(cls)
    made = [(field.name, field.default_factory) for field in fields if field.default_factory is not dataclasses.MISSING]
    defaults = {
        field.name: field.default for field in fields if field.init and field.default is not dataclasses.MISSING
    }
    count = len({*[field.name for field in fields if field.init], *[name for name, _ in made]})
    positional: dict[str, None] = {field.name: None for field in fields if field.init and not field.kw_only}
    return positional, count, defaults, made, any(base.__dict__.get("__slots__") for base in cls.__mro__)


def _written(name: str, parameters: list[str], lines: list[str], names: dict[str, Any]) -> Callable[..., object]:
    """Compile a function from its source text."""
    body = "".join(f"\n {line}" for line in lines or ["pass"])
    exec(f"def {name}({', '.join(parameters)}):{body}", names)
    return names[name]


def _init(cls: type) -> Callable[..., object]:
    """Generate ``__init__``, which sets fields from arguments and defaults, then calls ``__post_init__``."""
    fields = dataclasses.fields(cls)
    frozen = cls.__dict__.get("__setattr__") is _refuse_set
    names: dict[str, object] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    positional, by_name, lines = ["self"], list[str](), list[str]()
    for field in fields:
        value, parameter = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            value = f"_make_{field.name}()"
            if field.init:
                parameter = f"{field.name}=_missing"
                value = f"{value} if {field.name} is _missing else {field.name}"
        elif not field.init:
            continue
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            parameter = f"{field.name}=_default_{field.name}"
        if field.init:
            (by_name if field.kw_only else positional).append(parameter)
        lines.append(f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    return _written("__init__", [*positional, *(["*", *by_name] if by_name else [])], lines, names)


def _eq(cls: type) -> Callable[..., object]:
    """Return ``__eq__`` for instances of the same class, which compares symbolic lengths without noting guards."""
    values = _values([field.name for field in dataclasses.fields(cls) if field.compare])

    def __eq__(self: object, other: object) -> object:
        return same(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(cls: type) -> Callable[..., object]:
    """Return ``__hash__`` of the compared fields, which computes an instance's hash once."""
    fields = dataclasses.fields(cls)
    values = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

    def __hash__(self: Any) -> int:
        try:
            return self._known_hash  # type: ignore[no-any-return]
        except AttributeError:
            found = hash(values(self))
            object.__setattr__(self, "_known_hash", found)
            return found

    return __hash__


def _state(self: object) -> dict[str, object]:
    """Return the attributes to copy or pickle; hashes of strings differ between processes."""
    return {name: value for name, value in self.__dict__.items() if name != "_known_hash"}


def _values(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that returns the tuple of an object's attributes of these names."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    """Return the class name and the fields."""
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_set(self: object, name: str, value: object) -> None:
    """Set an attribute that a subclass without the decorator has added; refuse others."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_delete(self: object, name: str) -> None:
    """Delete an attribute that a subclass without the decorator has added; refuse others."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(cls: Any, name: str) -> bool:
    return "__dataclass_fields__" in cls.__dict__ or name in cls.__dataclass_fields__
