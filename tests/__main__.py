"""Runs every check of the project, pytest last: `python -m tests [pytest arguments]`.

All stages run even if one fails; the exit status is zero only if all pass.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"

BESIDE = {"mypy": ["-m", "mypy"]}
"""Stages of one process that run beside the others; their output comes last."""
STAGES: dict[str, list[str]] = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "import contract": ["-c", LINT_IMPORTS],
    # Each worker takes one half and then from what the other has left: files stay together, and both end at once.
    "pytest": ["-m", "pytest", "-n", "2", "--dist", "worksteal", "--benchmark-disable"],
}


def main(pytest_arguments: list[str]) -> int:
    failed = []
    started = {
        name: subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for name, command in BESIDE.items()
    }
    for name, command in STAGES.items():
        arguments = pytest_arguments if name == "pytest" else []
        if name == "pytest" and failed:
            print(f"\nfailed so far: {', '.join(failed)}", flush=True)
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, *command, *arguments], cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    for name, process in started.items():
        told = process.communicate()[0].decode(errors="replace")
        print(f"\n== {name}\n{told}", end="", flush=True)
        if process.returncode != 0:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
