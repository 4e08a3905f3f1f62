"""The portable form of a ``program``: made on first access, with the lineage by which its plans are cached; `FileForm`
is what a file holds beside it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..dataclass import dataclass
from ..graph.origin import Origin
from ..interrupts import whole_module
from ..messages import Messages
from .options import CompileOptions
from .target import target

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.record import TuningRecord
    from ..core.shape import Shape
    from ..graph.calibration import Calibration
    from ..graph.program import Program
    from .lineage import Lineage
    from .reshaping import Reread


@dataclass(frozen=True)
class Known:
    """Metadata of a program: all that is needed without its instructions.

    Attributes:
        messages: warnings of parsing or changing the model.
        beside: JSON values that the caller of `read_model` stored.
    """

    parameters: Mapping[str, Shape]
    results: Sequence[Shape]
    origin: Origin
    messages: list[Messages]
    beside: Mapping[str, object]


class PortableForm:
    """The IR program of a ``program``, and its history.

    Attributes:
        decode: makes the IR program on first access.
        lineage: the lineage, if plans may be cached; see `lineage_now`.
        known: metadata for use until the IR program is made.
        unkept: metadata to store with the first plan.
        reread: reads the model again for other lengths.
    """

    def __init__(
        self, decode: Callable[[], Program] | None = None, lineage: Lineage | None = None, known: Known | None = None
    ) -> None:
        self.decode = decode or _empty
        self.lineage = lineage
        self.known = known
        self.unkept: list[tuple[Lineage, Known]] = []
        self.reread: Reread | None = None
        # The IR program of this lineage and its change counters, to detect changes.
        self._pristine: tuple[weakref.ref[Program], list[int]] | None = None
        if known is not None:
            self.origin = known.origin

    @classmethod
    def of(cls, value: Program) -> PortableForm:
        """Return the form of an IR program."""
        self = cls()
        self.program = value
        return self

    @functools.cached_property
    def program(self) -> Program:
        """The IR program."""
        found = self.decode()
        if self.lineage is not None:
            self._pristine = _marks(found)
        return found

    @functools.cached_property
    def origin(self) -> Origin:
        """The model's metadata."""
        return self.program.origin

    def take_lineage(self, lineage: Lineage, decode: Callable[[], Program]) -> None:
        """Record the lineage of the IR program in its present state, and the function that makes it again."""
        self.lineage, self.decode = lineage, decode
        self._pristine = _marks(self.program)

    def defer(self, lineage: Lineage, decode: Callable[[], Program]) -> None:
        """Forget the IR program; ``decode`` makes a program of this lineage on the next access."""
        self.__dict__.pop("program", None)
        self.lineage, self.decode = lineage, decode

    @property
    def decoded(self) -> bool:
        """Whether the IR program exists."""
        return "program" in self.__dict__

    def lineage_now(self) -> Lineage | None:
        """Return the lineage; None if it is unknown, or if the IR program was changed since."""
        if self.lineage is not None and self.decoded:
            of, changes = self._pristine or (None, None)
            if of is None or of() is not self.program or changes != _marks(self.program)[1]:
                self.lineage = None
        return self.lineage

    def _known_only(self) -> Known | None:
        """Return the metadata if the IR program has not been made."""
        return None if self.decoded else self.known

    def parameters(self) -> dict[str, Shape]:
        """Return the shapes of the parameters, by name."""
        known = self._known_only()
        return self.program.parameter_shapes() if known is None else dict(known.parameters)

    def results(self) -> list[Shape]:
        """Return the shapes of the results."""
        known = self._known_only()
        return self.program.output_shapes() if known is None else list(known.results)


def _marks(portable: Program) -> tuple[weakref.ref[Program], list[int]]:
    """Return a reference to a program and its modules' change counters, to detect later changes."""
    return weakref.ref(portable), [module.changes for module in portable.modules]


def _empty() -> Program:
    whole_module("mgx_numba.graph.program")
    from ..graph.program import Program

    return Program()


class FileForm:
    """Compile options, tuning records and calibration of a program.

    Attributes:
        disabled_passes: passes that `optimize_program` excluded from later compilations.
        target: target of the last compilation, also of a copy that is not compiled.
        options: options of that compilation.
        store: machine code embedded in the file that the program was read from.
        find_records: returns the records on first access.
        find_calibration: returns the calibration on first access; None if the program is not quantised.
    """

    def __init__(self) -> None:
        self.disabled_passes: tuple[str, ...] = ()
        self.target: target | None = None
        self.options: CompileOptions | None = None
        self.store: Store | None = None
        self.find_records: Callable[[], list[TuningRecord]] = list
        self.find_calibration: Callable[[], Calibration | None] = lambda: None

    @functools.cached_property
    def records(self) -> list[TuningRecord]:
        """Tuning records, which compilations prefer to the cost model."""
        return self.find_records()

    def defer_records(self, find: Callable[[], list[TuningRecord]]) -> None:
        """Let ``find`` return the records on the next access."""
        self.__dict__.pop("records", None)
        self.find_records = find

    @functools.cached_property
    def calibration(self) -> Calibration | None:
        """Calibration of the quantisation to 8 bits."""
        return self.find_calibration()

    def disable(self, passes: Iterable[str]) -> None:
        """Exclude passes from later compilations."""
        self.disabled_passes = tuple(dict.fromkeys((*self.disabled_passes, *passes)))

    def copy(self) -> FileForm:
        """Return a copy for an uncompiled program: without target and options."""
        result = FileForm()
        result.disabled_passes, result.store = self.disabled_passes, self.store
        result.records = list(self.records)
        result.find_calibration = self.find_calibration
        if "calibration" in self.__dict__:
            result.calibration = self.calibration
        return result
