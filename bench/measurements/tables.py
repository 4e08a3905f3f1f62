"""Tables as data, and documents in which they stand between markers.

A table stands in a document between ``<!-- table NAME -->`` and ``<!-- end -->``, followed by a line that says where,
when and how it was measured. NAME is that of the measurement, with ``@CPU`` for the machine where there are several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Formatter

from bench.environment import ROOT

__all__ = ["DATA", "DOCUMENTS", "Table", "keep", "kept", "rendered", "with_tables"]

DATA = ROOT / "bench" / "data" / "measurements.json"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "measurements.md")
_MARKED = re.compile(r"<!-- table (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: names of the columns.
        rows: cells of each row.
        machine: the machine on which it was measured.
        commit: abbreviated commit that was measured, ``+`` for uncommitted changes.
        date: day of the measurement.
        recorded: abbreviated commit that brought the figures, if the measured commit was not noted.
        command: command that measures it; empty if no command of this repository does.
        numeric: whether all columns but the first are aligned to the right.
        figures: numbers that the summary refers to, by name.
        summary: rows of the summary in place of a cell: the name of a table, and the text with its `figures`, by row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    machine: str = ""
    commit: str = ""
    date: str = ""
    recorded: str = ""
    command: str = ""
    numeric: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    summary: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def text(self, others: Mapping[str, Table]) -> str:
        """Return the table as Markdown, with its caption; ``others`` has the tables of a summary."""
        rules = ["---", *("---:" if self.numeric else "---" for _ in self.header[1:])]
        rows = [list(row) for row in self.rows]
        for number, (name, form) in self.summary.items():
            figures = others[name].figures if name in others else {}
            known = all(field in figures for _, field, _, _ in Formatter().parse(form) if field)
            rows[int(number)][-1] = form.format(**figures) if known else "not measured"
        return "\n".join([*map(_line, (self.header, rules, *rows)), "", f"*{self.caption}*", ""])

    @property
    def caption(self) -> str:
        """Return where, when and how the table was measured."""
        of = f"commit {self.commit}" if self.commit else ""
        parts = [self.machine, of, f"recorded in commit {self.recorded}" if self.recorded else "", self.date]
        return "; ".join([*filter(None, parts), *([f"`{self.command}`"] if self.command else [])])


def _line(cells: Sequence[str]) -> str:
    return re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(cells)} |")


def kept(path: Path = DATA) -> dict[str, Table]:
    """Return the tables of a data file, by name."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: Table(**table) for name, table in found.items()}


def keep(tables: Mapping[str, Table], path: Path = DATA) -> None:
    """Write a data file: a line for each row of a table."""
    text = json.dumps({name: asdict(table) for name, table in tables.items()}, indent=1, ensure_ascii=False)
    # Rows of strings on one line each: a change of a figure is a change of a line.
    text = re.sub(r"\[\n\s+(\"[^\[\]{}]*?)\n\s+\]", lambda m: f"[{re.sub(chr(10) + ' +', ' ', m[1])}]", text)
    path.write_text(text + "\n", encoding="utf-8")


def rendered(text: str, tables: Mapping[str, Table]) -> str:
    """Return a document with the present text of each table between its markers.

    Raises:
        KeyError: the document has a marker of an unknown table.
    """

    def current(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n{tables[match[1]].text(tables)}<!-- end -->\n"

    return _MARKED.sub(current, text)


def with_tables(text: str, names: Sequence[str]) -> str:
    """Return a document with markers for these tables: a new one follows the last table of the same measurement."""
    for name in names:
        base = name.partition("@")[0]
        marks = list(_MARKED.finditer(text))
        like = [mark for mark in marks if mark[1].partition("@")[0] == base]
        if like and all(mark[1] != name for mark in like):
            end = like[-1].end()
            text = f"{text[:end]}\n<!-- table {name} -->\n<!-- end -->\n{text[end:]}"
    return text
