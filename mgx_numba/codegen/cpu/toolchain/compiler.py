"""Compile a kernel's Python text to an ELF object, through Numba's front end and LLVM.

Numba types the text and lowers it to LLVM IR. The function is wrapped into the kernel ABI, optimised by a short list of
LLVM passes (the text is explicitly vectorised) and emitted as a position-independent object. Numba is imported on the
first compilation. Any number of threads may request compilations, which run one at a time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

from ....dataclass import dataclass
from ....garbage import uncollected
from ...elf import read_object
from ...kernel import KernelSource
from ...toolchain.dead_ends import expect_returns
from ...toolchain.kernel_text import failure, read_text
from .. import host
from .symbols import unavailable

_lock = threading.RLock()
_LAST_PASSES = ("sccp", "simplify_cfg")  # find undefined behaviour, for `expect_returns`
_PASSES = (
    "sroa",
    "simplify_cfg",
    "instruction_combine",
    "sroa",  # again: the places of arrays are constants now
    *_LAST_PASSES,
)
"""LLVM's passes over a kernel, by llvmlite's names. Kernels are written with vectors, and with unrolled and rotated
loops. On Zen 5 the passes of -O2, without vectorisers, take 6 times as long, and speed up the kernels of no benchmark
network by 1%."""
_TILE_PASSES = (*_PASSES[: -len(_LAST_PASSES)], "loop_rotate", "instruction_combine", *_LAST_PASSES)
"""Passes over a kernel with register tiles: without them, loops of tiles keep pointers on the stack, and ShuffleNet's
convolutions take 1.35 times as long (Zen 5)."""


@dataclass(frozen=True)
class Inspection:
    """The stages of a compiled kernel: LLVM IR before and after optimisation, and assembly."""

    lowered: str
    optimised: str
    assembly: str


def compile_object(source: KernelSource, symbol: str = "") -> bytes:
    """Compile a kernel to an ELF object that exports ``symbol``, by default `source.symbol`.

    Raises:
        CompileError: the text is invalid, does not type, calls a forbidden function, or has a path that ends in
            undefined behaviour. The message names the kernel, the line of its text, and the kernel's source
            instructions.
    """
    symbol = symbol or source.symbol
    with (
        _lock,
        uncollected(),
        host.target_machine() as machine,
        _parse(source, _lower(source, symbol)) as module,
    ):
        _optimise(module, machine)
        expect_returns(source, str(module))
        with _strength_reduction(module, machine):
            data = machine.emit_object(module)
    symbols = read_object(data)
    missing = unavailable(symbols.undefined)
    if missing:
        raise failure(source, f"calls {', '.join(missing)}, which no kernel may call; only intrinsics are inlined")
    if symbol not in symbols.defined:
        raise failure(source, f"the object does not define {symbol}")
    return data


def inspect(source: KernelSource) -> Inspection:
    """Compile a kernel and return all stages.

    Raises:
        CompileError: as for `compile_object`.
    """
    with _lock:
        lowered = _lower(source, source.symbol)
        with host.target_machine() as machine, _parse(source, lowered) as module:
            _optimise(module, machine)
            with _strength_reduction(module, machine):
                return Inspection(lowered, str(module), machine.emit_assembly(module))


def _parse(source: KernelSource, lowered: str) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(lowered)
        module.verify()
    except RuntimeError as error:
        raise failure(source, f"LLVM refuses the lowered kernel: {error}") from error
    return module


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Run LLVM's passes. LLVM objects are closed explicitly, in order, rather than by the garbage collector."""
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.PipelineTuningOptions(speed_level=1)  # of passes that ask: this list has none
    with llvm.create_pass_builder(machine, options) as builder, llvm.create_new_module_pass_manager() as manager:
        for name in _TILE_PASSES if _has_tiles(module) else _PASSES:
            getattr(manager, f"add_{name}_pass")()
        manager.run(module, builder)


def _has_tiles(module: llvm.ModuleRef) -> bool:
    """Return whether a kernel has functions that are written in LLVM IR."""
    return sum(not function.is_declaration for function in module.functions) > 1


@contextmanager
def _strength_reduction(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> Iterator[None]:
    """Leave LLVM's loop strength reduction out of code generation in this context where kernels do not need it.

    It takes a third of the code generator's time. Addresses of x86-64 have an index, and `LoopAddresses` computes their
    invariant parts before loops, so that no benchmark network gets slower. Register tiles need it: without it, the row
    pointers of a tile of 12 rows do not fit into registers, and MobileNet v2 takes 3% longer (Zen 5). LLVM's option
    belongs to the process, so Numba's other compilations wait.
    """
    if not machine.triple.startswith("x86_64") or _has_tiles(module):
        yield
        return
    from ...toolchain.numba_core import global_compiler_lock

    with global_compiler_lock:
        llvm.set_option("mgx_numba", "-disable-lsr")
        try:
            yield
        finally:
            llvm.set_option("mgx_numba", "-disable-lsr=false")


def _lower(source: KernelSource, symbol: str) -> str:
    """Return the LLVM IR text of a kernel with its exported wrapper."""
    from . import frontend  # imports Numba

    function, names = read_text(source, _namespace())
    try:
        return frontend.lower(function, names, symbol)
    except frontend.Refused as error:
        raise failure(source, str(error)) from error.__cause__


@functools.lru_cache(maxsize=1)
def _namespace() -> dict[str, Any]:
    """Return the names that a kernel's text may use, besides Python's keywords."""
    from .. import vocabulary

    names: dict[str, Any] = {"__name__": vocabulary.__name__}
    names.update({name: getattr(vocabulary, name) for name in vocabulary.__all__})
    return names
