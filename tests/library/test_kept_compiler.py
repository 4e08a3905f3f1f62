"""What a compiler made is kept, and made again when a source, a header, an option or an input differs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import kept_compiler
from .support import CC, finished

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def test_results_are_those_of_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, compiler = tmp_path / "made", finished(["sh", "-c", "command -v cc || command -v gcc"]).strip()
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    Path("a.c").write_text('#include "a.h"\nint b(void);\nint main(void) { return A + b() + C; }\n')

    def status(header: str, other: str, option: str) -> int:
        """Return the exit status of a program of two objects and a header."""
        Path("a.h").write_text(f"#define A {header}\n")
        Path("b.c").write_text(f"int b(void) {{ return {other}; }}\n")
        for call in (["-c", "-I.", option, "a.c", "b.c"], ["-shared", "-fPIC", "b.c", "-o", "b.so"]):
            assert kept_compiler.main(folder, compiler, call) == 0
        assert kept_compiler.main(folder, compiler, ["a.o", "b.o", "-o", "program"]) == 0
        return subprocess.run(["./program"], check=False).returncode

    made = []
    for header, other, option in (("1", "2", "-DC=0"), ("1", "2", "-DC=0"), ("4", "2", "-DC=0"), ("4", "8", "-DC=16")):
        assert status(header, other, option) == int(header) + int(other) + int(option[4:])
        made.append(len(list(folder.iterdir())))
    assert made == [3, 3, 4, 7]  # two objects and a library; the second time none


def test_a_failure_is_the_compiler_s(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int main(void) { return; }\n")
    command = [sys.executable, kept_compiler.__file__, tmp_path, CC, "-Werror", tmp_path / "a.c", "-o", tmp_path / "a"]
    for _ in range(2):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode and "error" in done.stderr and not (tmp_path / "a").exists()
