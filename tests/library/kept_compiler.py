"""A C or C++ compiler that keeps what it makes, for runs of the tests: `kept_compiler.py FOLDER COMPILER ARGUMENTS`.

A result is found by the preprocessed sources, the other inputs, the options and the compiler. Calls that only print,
that write more than one file, or whose result names folders, go to the compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCES = (".c", ".cpp")
PREPROCESSED = ("-D", "-I", "-O", "-f", "-pthread", "-std=")
"""Beginnings of the options that the preprocessor is given."""
PASSED_ON = ("-E", "-L", "-M", "-Wl,-rpath", "-print", "-v", "--version")
"""Beginnings of the options of calls that go to the compiler."""
UNUSED_DAYS = 30


def main(folder: Path, compiler: str, arguments: list[str]) -> int:
    """Return the exit status of the compiler."""
    sources = [each for each in arguments if each.endswith(SOURCES)]
    if not sources or any(each.startswith(PASSED_ON) for each in arguments):
        return subprocess.run([compiler, *arguments], check=False).returncode
    others = [each for each in arguments if not each.endswith(SOURCES)]
    if "-o" in others:
        at = others.index("-o")
        return _kept(folder, compiler, others[:at] + others[at + 2 :], sources, others[at + 1])
    if "-c" in others:
        return max(_kept(folder, compiler, others, [each], f"{Path(each).stem}.o") for each in sources)
    return _kept(folder, compiler, others, sources, "a.out")


def _kept(folder: Path, compiler: str, options: list[str], sources: list[str], output: str) -> int:
    """Make ``output`` by the compiler, or copy it from the folder."""
    given = [each for each in options if each.startswith(PREPROCESSED)]
    text = subprocess.run([compiler, *given, "-E", "-P", *sources], capture_output=True, check=False)
    known = os.stat(compiler)
    key = hashlib.sha256(repr((os.path.realpath(compiler), known.st_size, known.st_mtime_ns, len(sources))).encode())
    for each in options:
        if not each.startswith("-I"):
            key.update(Path(each).read_bytes() if os.path.isfile(each) else each.encode() + b"\0")
    key.update(text.stdout)
    path = folder / key.hexdigest()
    if text.returncode == 0 and path.exists():
        shutil.copy(path, output)
        os.utime(path)
        return 0
    done = subprocess.run([compiler, *options, *sources, "-o", output], capture_output=True, check=False)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if text.returncode == done.returncode == 0 and not done.stdout + done.stderr:
        part = folder / f"{path.name}.{os.getpid()}"
        shutil.copy(output, part)
        part.replace(path)
        _remove_unused(folder)
    return done.returncode


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 86400
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may be renaming or removing it
            if path.stat().st_mtime < oldest:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
