"""Compile a kernel's Python text to PTX or an AMD code object; Numba types and lowers, LLVM emits.

Thread-safe; one compilation runs at a time.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import llvmlite.binding as llvm

from ....errors import CompileError, OptionError
from ....garbage import uncollected
from ...kernel import KernelSource
from ...toolchain.dead_ends import expect_returns
from ...toolchain.kernel_text import failure, read_text
from ..architecture import Architecture
from .amd_linker import link
from .choice import NUMBA_CUDA, toolchain

_lock = threading.RLock()
_OPTIMISATION_LEVEL = 3
"""LLVM's highest optimisation level."""
_CODE_OBJECT_VERSION = 500
"""Code object version 5, which ROCm loads from 5.7 on; LLVM's default needs a newer ROCm."""


def compile_object(source: KernelSource, arch: Architecture) -> bytes:
    """Return the PTX text (NVIDIA) or code object (AMD) of a kernel, which exports `source.symbol`.

    Raises:
        CompileError: the text is invalid, does not type, or calls an unknown function. The message names the kernel,
            the line, and the instructions it came from.
    """
    if arch.nvidia or toolchain() == NUMBA_CUDA:
        return assembly(source, arch).encode()
    with _lock, uncollected(), _machine(arch) as machine, _optimised(source, arch, machine) as module:
        return link(machine.emit_object(module))


def assembly(source: KernelSource, arch: Architecture) -> str:
    """Return a kernel's PTX or AMD assembly; errors as in `compile_object`."""
    if toolchain() == NUMBA_CUDA:
        return _official(source, arch)
    with _lock, uncollected(), _machine(arch) as machine, _optimised(source, arch, machine) as module:
        return machine.emit_assembly(module)


def _official(source: KernelSource, arch: Architecture) -> str:
    """Return the PTX of Numba's official CUDA target.

    Raises:
        CompileError: as in `compile_object`, and for AMD architectures.
        OptionError: numba-cuda is missing or incompatible with other packages.
    """
    if not arch.nvidia:
        raise failure(source, f"the toolchain {NUMBA_CUDA} compiles for NVIDIA's GPUs, not for {arch.name}")
    with _lock, uncollected():
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
    """Return a kernel's LLVM IR before LLVM's passes; errors as in `compile_object`."""
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
    """Return the names that kernel text may use."""
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
    """Return the kernel's module after LLVM's passes. The emitting caller must close it: emitting twice aborts the
    process."""
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
    """Return the IR with an additional module flag."""
    number = 1 + max((int(found) for found in re.findall(r"^!(\d+) =", text, re.M)), default=-1)
    return f"{text}\n!llvm.module.flags = !{{!{number}}}\n!{number} = {flag}\n"
