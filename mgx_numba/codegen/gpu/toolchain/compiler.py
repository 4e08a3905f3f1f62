"""From a kernel's Python text to what a driver loads: PTX, or AMD's code objects; Numba types and lowers, LLVM emits.

Compilation may be asked for from any number of threads; it runs in one at a time.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import llvmlite.binding as llvm

from ....errors import CompileError, OptionError
from ...kernel import KernelSource
from ...toolchain.dead_ends import expect_returns
from ...toolchain.garbage import collection_paused
from ...toolchain.kernel_text import failure, read_text
from ..architecture import Architecture
from .amd_linker import link
from .choice import NUMBA_CUDA, toolchain

__all__ = ["assembly", "compile_object", "lowered", "vocabulary_names"]

_lock = threading.RLock()
_OPTIMISATION_LEVEL = 3
"""LLVM's highest."""
_CODE_OBJECT_VERSION = 500
"""Code object 5, which ROCm loads from 5.7 on; LLVM's own default wants a newer one."""


def compile_object(source: KernelSource, arch: Architecture) -> bytes:
    """PTX text (NVIDIA) or a code object (AMD) of a kernel, which exports `source.symbol`.

    Raises:
        CompileError: the text is not valid, does not type, or calls what no kernel may call. The message names the
            kernel, the line of its text, and the instructions it came from.
    """
    if arch.nvidia or toolchain() == NUMBA_CUDA:
        return assembly(source, arch).encode()
    with _lock, collection_paused(), _machine(arch) as machine, _optimised(source, arch, machine) as module:
        return link(machine.emit_object(module))


def assembly(source: KernelSource, arch: Architecture) -> str:
    """PTX, or AMD's assembly, of a kernel; errors as `compile_object`."""
    if toolchain() == NUMBA_CUDA:
        return _official(source, arch)
    with _lock, collection_paused(), _machine(arch) as machine, _optimised(source, arch, machine) as module:
        return machine.emit_assembly(module)


def _official(source: KernelSource, arch: Architecture) -> str:
    """PTX by Numba's official CUDA target.

    Raises:
        CompileError: as `compile_object`, and for AMD's architectures.
        OptionError: it is not installed, or does not work with other packages that are.
    """
    if not arch.nvidia:
        raise failure(source, f"the toolchain {NUMBA_CUDA} compiles for NVIDIA's GPUs, not for {arch.name}")
    with _lock, collection_paused():
        try:
            from .numba_cuda import ptx
        except ImportError as error:
            needed = "needs packages that are not installed (pip install 'mgx_numba[cuda]')"
            raise OptionError(f"the toolchain {NUMBA_CUDA} {needed}: {error}") from error
        except AttributeError as error:  # numba-cuda 0.30 reads names that NumPy 2.5 no longer has
            raise OptionError(f"the toolchain {NUMBA_CUDA} does not work with a package it imports: {error}") from error
        made = ptx(source, vocabulary_names(), arch)
        expect_returns(source, made)
        return made


def lowered(source: KernelSource, arch: Architecture) -> str:
    """LLVM IR of a kernel before LLVM's passes; errors as `compile_object`."""
    from . import frontend  # imports Numba

    function, names = read_text(source, vocabulary_names())
    try:
        shape = frontend.block_shape(names)
        with _lock, _machine(arch) as machine:
            return frontend.lower(function, names, source.symbol, shape, arch, str(machine.target_data))
    except frontend.Refused as error:
        raise failure(source, str(error)) from error.__cause__


@functools.lru_cache(maxsize=1)
def vocabulary_names() -> dict[str, Any]:
    """What a kernel's text may name, besides Python's own words."""
    from .. import vocabulary

    return {"__name__": vocabulary.__name__, **{name: getattr(vocabulary, name) for name in vocabulary.__all__}}


@functools.lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(arch: Architecture) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(arch.triple).create_target_machine(cpu=arch.name, features=arch.features, opt=3)


def _optimised(source: KernelSource, arch: Architecture, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The kernel's module after LLVM's passes; whoever emits it closes it: a second emission aborts the process."""
    text = lowered(source, arch)
    if not arch.nvidia:
        text = _with_flag(text, f'!{{i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT_VERSION}}}')
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise failure(source, f"LLVM refuses the lowered kernel: {error}") from error
    options = llvm.PipelineTuningOptions(speed_level=_OPTIMISATION_LEVEL)
    options.loop_vectorization = False
    options.slp_vectorization = False
    with llvm.create_pass_builder(machine, options) as builder, builder.getModulePassManager() as manager:
        manager.run(module, builder)
    missing = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if missing:
        module.close()
        raise failure(source, f"calls {', '.join(missing)}, which no kernel may call; only intrinsics are inlined")
    try:
        expect_returns(source, str(module))
    except CompileError:
        module.close()
        raise
    return module


def _with_flag(text: str, flag: str) -> str:
    """The text with a module flag, whose number no other metadata has."""
    number = 1 + max((int(found) for found in re.findall(r"^!(\d+) =", text, re.M)), default=-1)
    return f"{text}\n!llvm.module.flags = !{{!{number}}}\n!{number} = {flag}\n"
