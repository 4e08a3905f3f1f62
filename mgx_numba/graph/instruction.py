"""Instructions: an operator, its input instructions, and the resulting shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ..core.argument import Argument
from ..core.shape import Shape
from ..dataclass import dataclass
from ..ops.base import Operator

if TYPE_CHECKING:
    from .module import Module

Op = TypeVar("Op", bound=Operator)


@dataclass(frozen=True)
class Literal(Operator):
    """A constant; its value is the instruction's ``literal``."""

    name: ClassVar[str] = "@literal"


@dataclass(frozen=True)
class Parameter(Operator):
    """A named input of a module; ``order`` is the order of declaration."""

    name: ClassVar[str] = "@param"
    parameter: str = ""
    order: int = 0


@dataclass(frozen=True)
class Return(Operator):
    """The results of a module; always its last instruction."""

    name: ClassVar[str] = "@return"


@dataclass(frozen=True)
class Outline(Operator):
    """A placeholder with a shape and no value (``skip_unknown_operators`` and tracing use it)."""

    name: ClassVar[str] = "@outline"


class Instruction:
    """One operation of a module, a node of its linked list.

    Attributes:
        op: the operator.
        inputs: instructions whose values it takes, in order.
        shape: shape of its value (of its first result for ``@return``).
        module_args: submodules that it runs (pointwise, fused_reduce, if, loop).
        literal: value of a ``@literal``.
        users: instructions that read its value, each once, with the input positions at which they read it.
        debug_symbols: names of the source nodes that it came from, if the user wants to see them.
        place: description of the source node for error messages; "" if there is none.
        module: the module that holds it, ``None`` once removed.
    """

    __slots__ = (
        "_next",
        "_prev",
        "debug_symbols",
        "inputs",
        "literal",
        "module",
        "module_args",
        "normalized",
        "op",
        "place",
        "shape",
        "target_id",
        "users",
    )

    def __init__(
        self,
        op: Operator,
        inputs: Iterable[Instruction],
        shape: Shape,
        module_args: Sequence[Module] = (),
        literal: Argument | None = None,
    ) -> None:
        self.op = op
        self.inputs: list[Instruction] = list(inputs)
        self.shape = shape
        self.module_args: tuple[Module, ...] = tuple(module_args)
        self.literal = literal
        self.users: dict[Instruction, tuple[int, ...]] = {}
        self.debug_symbols: tuple[str, ...] = ()
        self.place = ""
        self.normalized = False
        self.target_id = 0
        self.module: Module | None = None
        self._prev: Instruction | None = None
        self._next: Instruction | None = None

    @property
    def name(self) -> str:
        """Operator name."""
        return self.op.name

    def operator(self, kind: type[Op]) -> Op:
        """Return the operator, which must be of class ``kind``, for code that only such instructions reach."""
        assert isinstance(self.op, kind), f"{self.op} is no {kind.__name__}"
        return self.op

    def located(self, message: str) -> str:
        """Return a message prefixed with the instruction's source nodes, if they are known and it lacks them."""
        if self.debug_symbols:
            return f"node {', '.join(self.debug_symbols)}: {message}"
        return f"{self.place}: {message}" if self.place and not message.startswith(self.place) else message

    @property
    def is_literal(self) -> bool:
        """Whether this is a ``@literal``."""
        return self.literal is not None

    @property
    def is_param(self) -> bool:
        """Whether this is a ``@param``."""
        return isinstance(self.op, Parameter)

    @property
    def dependencies(self) -> list[Instruction]:
        """Return the instructions that must run before this instruction: its inputs, and outer values that its
        submodules use."""
        if not self.module_args:
            return list(self.inputs)
        return [*self.inputs, *(i for module in self.module_args for i in module.captured())]

    @property
    def single_use(self) -> bool:
        """Whether one instruction reads the value, at one position."""
        return len(self.users) == 1 and len(next(iter(self.users.values()))) == 1

    def __repr__(self) -> str:
        return f"<{self.op} -> {self.shape}>"


class Results(Instruction):
    """A ``@return`` instruction. It may have many results, so its shape is made when it is read."""

    __slots__ = ()

    def __init__(self, results: Iterable[Instruction]) -> None:
        super().__init__(Return(), results, Shape.tuple(()))

    @property
    def shape(self) -> Shape:
        """Shape of the only result, or a tuple of the shapes of all results."""
        return self.inputs[0].shape if len(self.inputs) == 1 else Shape.tuple(i.shape for i in self.inputs)

    @shape.setter
    def shape(self, shape: Shape) -> None:
        pass
