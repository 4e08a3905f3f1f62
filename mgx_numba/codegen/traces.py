"""Printing and logging of kernels on their way to machine code, common to all back ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..environment import environment_flag
from ..messages import DEBUG, INFO, TRACE, tell
from .kernel import KernelSource


def show_kernels(sources: Sequence[KernelSource], missing: Sequence[KernelSource]) -> None:
    """Log kernels that this process has not loaded yet, and which of them the store lacks.

    ``MIGRAPHX_TRACE_COMPILE`` prints them.
    """
    tell("kernels", INFO if missing else DEBUG, "%d kernels, %d to be compiled", len(sources), len(missing))
    traced = environment_flag("MIGRAPHX_TRACE_COMPILE")
    lacking = {source.symbol for source in missing}
    for source in sources:
        how = "to be compiled" if source.symbol in lacking else "from the store"
        tell("kernels", TRACE, "%s %s: %s", source.name, source.symbol, how)
        if traced:
            print(f"Kernel {source.name} {source.symbol}: {how}")


def dump_kernels(sources: Sequence[KernelSource], assembly: Callable[[KernelSource], str]) -> None:
    """Print a program's kernels.

    ``MIGRAPHX_GPU_DUMP_SRC`` prints their text, ``MIGRAPHX_GPU_DUMP_ASM`` the result of ``assembly`` for each.
    """
    text, code = environment_flag("MIGRAPHX_GPU_DUMP_SRC"), environment_flag("MIGRAPHX_GPU_DUMP_ASM")
    for source in sources if text or code else ():
        if text:
            print(f"# {source.name}\n{source.text}")
        if code:
            print(f"# {source.name}\n{assembly(source)}")
