"""Nothing that only Linux, or only POSIX systems, have is needed to import, parse, compile, run, save and load."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.host import LEVELS
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain import compiler
from mgx_numba.codegen.cpu.toolchain.symbols import ALLOWED
from mgx_numba.codegen.elf import read_object

from .other_system import MODULES

ROOT = Path(__file__).resolve().parents[2]
X86, ARM = LEVELS["x86-64-v3"], frozenset(("neon", "fp-armv8", "lse", "dotprod"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes away what Linux has")
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_model_runs_without_what_only_linux_has(system: str) -> None:
    """On Windows no file could be parsed or written: `os.preadv` and `os.fchmod` are missing there."""
    command = [sys.executable, "-m", "tests.runtime.other_system", system]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(system) and ("apple" in done.stdout) == (system == "darwin")


def test_perf_and_chat_could_not_be_imported_on_windows() -> None:
    """No module imports one that Windows lacks, but inside a function or where an error is caught."""
    for path in (ROOT / "mgx_numba").rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            if isinstance(statement, ast.ImportFrom) and not statement.level:
                imported = [statement.module or ""]
            assert not set(imported) & set(MODULES.split()), path


@pytest.mark.parametrize(
    "triple, features",
    [
        ("x86_64-apple-darwin23.4.0-elf", X86), ("arm64-apple-darwin23.4.0-elf", ARM),
        ("x86_64-pc-windows-msvc-elf", X86), ("aarch64-pc-windows-msvc-elf", ARM),
    ],
)  # fmt: skip
def test_kernels_with_large_local_arrays_could_not_be_loaded_on_windows(
    triple: str, features: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM calls a function of Windows there, which no kernel was allowed to call."""
    text = """def kernel(args, begin, end):
    kept = local_float32(16384)
    x = pointer_float32(args, 0)
    for i in range(begin, end):
        store(kept, imod(i, 16000), load(x, i, 8))
    for i in range(begin, end):
        store(x, i, load(kept, imod(i, 16000), 8))
"""
    monkeypatch.setenv(host.ENVIRONMENT, "")
    monkeypatch.setattr(compiler, "unavailable", lambda names: sorted(set(names) - ALLOWED))
    fake = dataclasses.replace(host.platform(), cpu="generic", triple=triple, features=dict.fromkeys(features, True))
    with host.pretending(fake):
        called = read_object(compiler.compile_object(cpu_kernel("large_kernel", text))).undefined
    assert ("__chkstk" in called) == ("windows" in triple)
