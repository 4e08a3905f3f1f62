"""The part of a ``program`` that a file holds beside the portable form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .options import CompileOptions
from .target import target

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.record import TuningRecord
    from ..graph.calibration import Calibration


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
