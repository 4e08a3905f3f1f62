"""Entry point of ``mgx-numba-driver``."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from .._version import __version__
from ..errors import MgxError, OptionError
from ..nearest import did_you_mean
from .arguments import add_idle_output, file_among_words, in_flags, in_words
from .commands import COMMANDS
from .logs import LOG, add_logging, logged
from .variables import report_environment

PROGRAM = "mgx-numba-driver"
FAILURE = 2  # exit status for errors, as in argparse
INTERRUPTED = 130  # exit status that shells report after SIGINT
_NO_COMMIT = "no commit of ONNX Runtime is needed: see mgx_numba.session"
"""Answer to ``--ort-sha``, with which MIGraphX names the commit that has its execution provider."""
OF_WRITING = frozenset((errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE))
"""Error numbers that can only come from writing standard output; errors of files are reported with the file's name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0; 1 if a verification found a difference; 2 on an error, which is reported on standard error in one line; 130
        if interrupted.
    """
    if argv is None:
        if sys.stdout is None:
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
        elif isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(arguments)
    args = parser.parse_args(arguments)
    file_among_words(args)
    if args.command is None:
        parser.print_help()
        return FAILURE
    try:
        with logged(args):
            return _run(args, f"[ mgx_numba Version: {__version__} ]: {shlex.join([PROGRAM, *arguments])}")
    except MgxError as error:  # from the logging flags
        print(f"error: {error}", file=sys.stderr)
        return FAILURE


def _run(args: argparse.Namespace, header: str) -> int:
    """Run the command and log its outcome; ``header`` is the command line."""
    start = time.perf_counter()
    LOG.info("Running %s", header)
    try:
        report_environment(LOG)
        for flag in getattr(args, "idle", ()):
            LOG.warning("%s has no effect: read and compile write programs", flag)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            status: int = COMMANDS[args.command].run(args)
        sys.stdout.flush()
    except MgxError as error:
        LOG.error("%s", in_flags(str(error)) if isinstance(error, OptionError) else in_words(str(error)))
        return FAILURE
    except MemoryError as error:
        LOG.error("not enough memory: %s", error)
        return FAILURE
    except KeyboardInterrupt:
        LOG.info("interrupted")
        return INTERRUPTED
    except OSError as error:
        place = error.filename
        if place is None and error.errno in OF_WRITING:
            # Standard output cannot be written to; keep the interpreter from flushing it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            place = "standard output"
        if not isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            LOG.error("%s", error if place is None else f"{place}: {error.strerror or error}")
        return FAILURE
    LOG.info("Complete(%.3gs): %s", time.perf_counter() - start, header)
    return status


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports a wrong argument in one line, with a pointer to the help."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        wrong = re.search(r"invalid choice: '(.*?)'", message)
        if wrong is not None and "<command>" in message:
            hint = did_you_mean(wrong[1], COMMANDS, 2)
            message = f"unknown command {wrong[1]!r}{hint or '; known: ' + ', '.join(COMMANDS)}"
        self.exit(FAILURE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does, but let each command report its own unknown flags, with similar known flags."""
        found, unknown = super().parse_known_args(args, namespace)
        for word in unknown if self._subparsers is None else ():
            hint = did_you_mean(word.partition("=")[0], self._option_string_actions, 2)
            self.error(f"unrecognized argument: {word}{hint}")
        return found, unknown


def _parser(words: Container[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the commands that occur in ``words``: adding those of
    all commands takes most of the time of a short command."""
    parser = _Parser(prog=PROGRAM, description="Read, compile, run, time and verify models.", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=f"mgx_numba Version: {__version__}")
    parser.add_argument("--ort-sha", action="version", version=_NO_COMMIT, help="tell of MIGraphX's ONNX Runtime")
    commands = parser.add_subparsers(dest="command", metavar="<command>")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").strip().splitlines()[0]
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name in words:
            command.add_arguments(sub)
            add_idle_output(sub)
            add_logging(sub)
    return parser


def _show_warning(message: object, category: object, filename: str, line: int, *rest: object) -> None:
    LOG.warning("%s", in_flags(str(message)))


if __name__ == "__main__":
    sys.exit(main())
