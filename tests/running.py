"""Execution of test code in concurrent threads, and in separate Python processes."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

__all__ = ["ROOT", "at_once", "ended", "said"]

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
"""Root of the repository, the folder in which processes run."""


def at_once(work: Callable[[T], None], each: Iterable[T]) -> None:
    """``work`` of each, in one thread each, which see the context variables that this one sees.

    Returns when all are done. Raises what one of them raised.
    """
    errors: list[BaseException] = []

    def guarded(one: T) -> None:
        try:
            work(one)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(guarded, one)) for one in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def ended(
    program: str, *arguments: object, seconds: float = 120, **environment: object
) -> subprocess.CompletedProcess[str]:
    """A Python process that ran a text, which sees the present environment variables and these.

    Raises:
        subprocess.TimeoutExpired: it took more than so many seconds.
    """
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def said(program: str, *arguments: object, seconds: float = 120, **environment: object) -> str:
    """Return a process's output, stripped; fail the test with its error output if the process fails."""
    done = ended(program, *arguments, seconds=seconds, **environment)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout.strip()
