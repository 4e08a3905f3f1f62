"""Compile every kernel that the target gpu plans for ONNX's node tests and the benchmark's models, without a device.

    python -m tests.gpu.planned_kernels [--arch sm_90a] [--every N]

A kernel fails to compile if a path ends in a trap or is unreachable for LLVM (`dead_ends.py`). It also fails if its
text reads a variable that may have no value (`assignment.py`). The program prints the errors; the exit status is 1 if
there is any.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES, ENVIRONMENT
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.errors import CompileError, MgxError
from mgx_numba.graph.program import Program
from mgx_numba.targets.gpu.lower import lowering, optimized
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions

from ..interpreter.engine import interpreted
from ..plans.models import model_programs, node_programs

__all__ = ["planned", "refused"]


def planned(programs: Iterable[tuple[str, Program]]) -> list[KernelSource]:
    """Return the kernels of programs, with ``fast_math`` and without, each once."""
    found: dict[str, KernelSource] = {}
    with interpreted(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _, program in programs:
            arrays, _ = without_tuples(program)
            for fast_math in (True, False):
                options = TargetOptions(fast_math=fast_math)
                try:
                    plan = lowering(LoweringJob(optimized(arrays, options), options)).run()
                except MgxError:  # lengths that are known at run time only
                    continue
                found.update((kernel.text, kernel) for kernel in plan.kernels())
    return list(found.values())


def refused(kernels: Iterable[KernelSource], arch: str) -> Iterator[str]:
    """Yield the errors of kernels that do not compile for an architecture."""
    for kernel in kernels:
        try:
            assembly(kernel, ARCHITECTURES[arch])
        except CompileError as error:
            yield str(error)


def main() -> int:
    """Plan and compile the kernels, print errors and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a", choices=sorted(ARCHITECTURES))
    parser.add_argument("--every", type=int, default=1, help="compile one of so many")
    given = parser.parse_args()
    os.environ[ENVIRONMENT] = given.arch
    kernels = planned([*node_programs(), *model_programs("tiny")])[:: given.every]
    count = 0
    for error in refused(kernels, given.arch):
        count += 1
        print(error, flush=True)
    print(f"{given.arch}: {len(kernels) - count} of {len(kernels)} kernels compile")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
