"""Compiles, with Numba's official CUDA target, every kernel that the GPU tests run on the interpreter.

    python -m tests.gpu.kernels_of_tests [--arch sm_90a] [--every N] [--tests FOLDER_OR_FILE]

Writes what is refused, with the reason, and ends with 1 if anything is. Needs the extra ``cuda``; takes half an hour on
one core for all of them, so that no test does it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES, ENVIRONMENT
from mgx_numba.codegen.gpu.toolchain import choice
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.errors import CompileError

from ..interpreter.engine import InterpreterEngine


class Recorder:
    """A plugin of pytest that notes each kernel which the interpreter is given, once for each text."""

    def __init__(self) -> None:
        self.kernels: dict[str, KernelSource] = {}
        self._load = InterpreterEngine.load

    def pytest_configure(self) -> None:
        recorder, load = self, self._load

        def noted(engine, kernels, *rest):  # type: ignore[no-untyped-def]
            recorder.kernels.update((kernel.text, kernel) for kernel in kernels)
            return load(engine, kernels, *rest)

        InterpreterEngine.load = noted

    def pytest_unconfigure(self) -> None:
        InterpreterEngine.load = self._load


def main() -> int:
    """Run the tests, compile the kernels that they ran, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a", choices=[a.name for a in ARCHITECTURES.values() if a.nvidia])
    parser.add_argument("--every", type=int, default=1, help="compile one of so many")
    parser.add_argument("--tests", default="tests/gpu")
    given = parser.parse_args()
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not gpu", given.tests], plugins=[recorder])
    os.environ[ENVIRONMENT], os.environ[choice.ENVIRONMENT] = given.arch, choice.NUMBA_CUDA
    chosen = list(recorder.kernels.values())[:: given.every]
    refused: Counter[str] = Counter()
    for kernel in chosen:
        try:
            compile_object(kernel, ARCHITECTURES[given.arch])
        except CompileError as error:
            reason = str(error).removeprefix(f"kernel {kernel.name}: ").splitlines()[0]
            refused[reason] += 1
            print(f"{kernel.name}: {reason}", flush=True)
    print(f"{given.arch}: {len(chosen) - refused.total()} of {len(chosen)} kernels compile")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
