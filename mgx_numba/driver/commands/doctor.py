"""Report on this machine and installation, and compare a small model of each kind with the reference target."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict

from ..._version import __version__
from ...codegen.files import ENVIRONMENT as CACHE_VARIABLE
from ...errors import MgxError, OptionError
from ...nearest import did_you_mean
from ...targets.registry import DEFAULT, missing
from ..doctor.facts import Facts, Findings, facts
from ..doctor.models import MODELS
from ..doctor.trials import LIMIT_SECONDS, ModelTrial, trials

UNHEALTHY = 1  # exit status; 2 is for errors of the command line
_LABEL = 24  # columns of labels, from the longest label
_NARROWEST, _WIDEST = 60, 140  # columns within which lines are folded on a terminal
_TO_SEND = (
    "Send with a report of a bug: the output of mgx-numba-driver doctor --json; the model, or a smaller model that "
    "fails in the same way; the script or command; the whole error message."
)
_GREEN, _RED, _BOLD = "32", "31", "1"  # of ANSI's SGR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.set_defaults(log_level="warn")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    names = ", ".join(MODELS)
    parser.add_argument("--models", metavar="NAMES", help=f"comma-separated models to try: {names}; none (default all)")
    seconds = f"most seconds for all models together (default {LIMIT_SECONDS:.0f})"
    parser.add_argument("--timeout", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help=seconds)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if all models that can run here agree with the reference, else 1.

    Raises:
        OptionError: a model's name is unknown.
    """
    names, found, outcomes = _chosen(args.models), Findings(), []
    show = _Text(args.json)
    show.header(f"mgx_numba {__version__}")
    sections = {}
    for title, lines in facts(found):
        sections[title] = lines
        show.section(title, lines)
    show.header("models, compared with ref")
    for outcome in trials(names, args.timeout):
        outcomes.append(outcome)
        show.trial(outcome)
    by_problem: dict[str, list[str]] = {}
    for one in outcomes:
        by_problem.setdefault(one.problem, []).append(f"{one.title} ({one.target})")
    found.problems += [f"{'; '.join(titles)}: {problem}" for problem, titles in by_problem.items() if problem]
    told = any(CACHE_VARIABLE in note for note in found.notes)
    found.notes += dict.fromkeys(
        text for one in outcomes for text in one.warnings if not (told and CACHE_VARIABLE in text)
    )
    for title, texts in (("notes", found.notes), ("problems", found.problems)):
        if texts:
            show.list(title, texts)
    status = UNHEALTHY if found.problems else 0
    if args.json:
        report = {"version": __version__, "healthy": not status, "facts": sections}
        report |= {"models": [{**asdict(one), "title": one.title} for one in outcomes]}
        print(json.dumps(report | {"notes": found.notes, "problems": found.problems}, indent=1))
    else:
        show.conclusion(status, len(outcomes))
    return status


def _chosen(given: str | None) -> list[str]:
    """Return the models to try; by default all whose target can run here."""
    if given is None:
        targets = {DEFAULT, "gpu"} if _has_gpu() else {DEFAULT}
        return [name for name, model in MODELS.items() if model.target in targets]
    names = [] if given == "none" else given.split(",")
    for name in names:
        if name not in MODELS:
            hint = did_you_mean(name, MODELS, 2)
            raise OptionError(f"--models: unknown model {name!r}{hint}; known: {', '.join(MODELS)}")
    return names


def _has_gpu() -> bool:
    try:
        return not missing("gpu")
    except MgxError:  # the facts tell the error
        return False


class _Text:
    """The report as text: coloured and folded on a terminal, one line a fact elsewhere."""

    def __init__(self, silent: bool) -> None:
        self._silent, self._before = silent, ""
        terminal = sys.stdout.isatty()
        self._colours = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        columns = shutil.get_terminal_size().columns
        self._columns = min(max(columns, _NARROWEST), _WIDEST) if terminal else 0

    def header(self, text: str) -> None:
        """Print a title, after an empty line unless it is the first."""
        self._print(self._before + self._coloured(text, _BOLD))
        self._before = "\n"

    def section(self, title: str, lines: Facts) -> None:
        self.header(title)
        for name, value in (lines or {"(none)": ""}).items():
            self._line(f"  {name}", value)

    def trial(self, outcome: ModelTrial) -> None:
        """Print the line of a model."""
        verdict = self._coloured("FAILED", _RED) if outcome.problem else self._coloured("ok", _GREEN)
        times = f"compile {outcome.compile_seconds:.1f} s, run {outcome.run_seconds * 1e3:.2f} ms"
        told = outcome.problem or f"error {outcome.error:.0e}, {times}"
        self._line(f"  {outcome.title}", f"{verdict}  {outcome.target}: {told}")

    def list(self, title: str, texts: Iterable[str]) -> None:
        self.header(title)
        for text in texts:
            self._print(self._folded("  - ", "    ", text))

    def conclusion(self, status: int, count: int) -> None:
        """Print the verdict, and the files to send with a report of a bug."""
        told = "healthy" if not status else "not healthy: see the problems above"
        self._print("\n" + self._coloured(f"{told} ({count} models tried)", _RED if status else _GREEN))
        self._print(self._folded("", "", _TO_SEND))

    def _line(self, name: str, value: str) -> None:
        self._print(self._folded(f"{name:<{_LABEL + 4}}", " " * (_LABEL + 4), value))

    def _folded(self, first: str, later: str, text: str) -> str:
        if not self._columns:
            return f"{first}{text}".rstrip()
        return textwrap.fill(text, self._columns, initial_indent=first, subsequent_indent=later) or first

    def _coloured(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colours else text

    def _print(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)
