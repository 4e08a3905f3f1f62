"""Compilation in the background: while a program is compiled, its runs are computed by the target ``ref`` (NumPy)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

if TYPE_CHECKING:
    from ..graph.program import Program
    from .argument import argument
    from .compiled_form import CompiledForm
    from .program import program

T = TypeVar("T")

HEAD_START_SECONDS = 1.0
"""Longest time that a compilation leaves the cores to the first run. NumPy takes 0.1 to 0.8 s for a run of bench's
ResNet-50, DenseNet-121, BERT, GPT-2 and YOLO on one core of a Zen 5."""


class PendingCompilation:
    """A compilation in a thread of its own. It begins after the first run, or after `HEAD_START_SECONDS`.

    The process ends only after the thread has, so that the next process finds kernels and plan in the cache folder.

    Attributes:
        portable: the program.
        stand_in: the same program, compiled for the target ``ref``.
    """

    stand_in: program

    def __init__(self, portable: Program, compile: Callable[[], CompiledForm]) -> None:
        """Prepare ``compile``, which compiles ``portable`` and does not change it."""
        self.portable, self._compile = portable, compile
        self._form: CompiledForm | None = None
        self._error: BaseException | None = None
        self._begin = threading.Event()
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name="mgx-compile", daemon=False)

    def start(self, stand_in: program) -> None:
        """Start the thread; ``stand_in`` computes runs until it ends."""
        self.stand_in = stand_in
        self._thread.start()

    def _work(self) -> None:
        self._begin.wait(HEAD_START_SECONDS)
        try:
            self._form = self._compile()
        except BaseException as error:  # raised where the compiled form is needed
            self._error = error

    def ended(self) -> bool:
        """Return whether the compilation has ended, with or without success."""
        return not self._thread.is_alive()

    def run(self, params: Mapping[str, object], outputs: Mapping[str, object] | None = None) -> list[argument]:
        """Run on the target ``ref``, then let the compilation begin."""
        try:
            return self.stand_in.run(params, outputs)
        finally:
            self._begin.set()

    def result(self) -> CompiledForm:
        """Wait for the compiled form and return it, or raise the error of the compilation."""
        self._begin.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._form is not None
        return self._form


class AfterCompilation(Generic[T]):
    """An attribute of a program that is read after its compilation in the background has ended.

    The value lies in the instance's attribute ``_now`` + name, which is read without waiting.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_now{name}"

    @overload
    def __get__(self, of: None, owner: type) -> AfterCompilation[T]: ...
    @overload
    def __get__(self, of: program, owner: type) -> T: ...
    def __get__(self, of: program | None, owner: type) -> object:
        if of is None:
            return self
        if of._background is not None:
            of.wait()
        return cast("T", of.__dict__[self._name])

    def __set__(self, of: program, value: T) -> None:
        of.__dict__[self._name] = value
