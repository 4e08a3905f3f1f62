"""Measure the tables of README.md and docs/measurements.md, and write them.

    python -m bench.measurements                    # each table that this machine can measure: hours
    python -m bench.measurements float32 start      # some of them
    python -m bench.measurements --small --data FILE --documents FOLDER   # a small part of each, to try the tool
    python -m bench.measurements --write            # no measurement: write the documents from the data
    python -m bench.measurements --check            # exit status 1 if a document is not what the data say

Figures are kept in bench/data/measurements.json, with machine, commit, date and command. A table of another machine
stands beside those that are there. The summary in README.md takes its figures from the tables. Nothing else may run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.environment import describe
from bench.measurements.measured import MEASURES
from bench.measurements.tables import DATA, DOCUMENTS, Table, keep, kept, rendered, with_tables
from mgx_numba.codegen.platform import platform
from mgx_numba.targets.registry import missing, target

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.measurements", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of {', '.join(MEASURES)}")
    parser.add_argument("--small", action="store_true", help="measure a small part, which means nothing")
    parser.add_argument("--data", type=Path, default=DATA, help="the data file")
    parser.add_argument("--documents", type=Path, help="folder of copies of the documents, to be written instead")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="measure nothing, write the documents")
    how.add_argument("--check", action="store_true", help="measure and write nothing, compare")
    given = parser.parse_args(arguments)
    for name in given.tables:
        if name not in MEASURES:
            parser.error(f"unknown table {name!r}: expected some of {', '.join(MEASURES)}")
    if given.small and (given.data.resolve() == DATA or given.documents is None):
        parser.error("--small needs --data and --documents: its figures are not for the repository")
    documents = [given.documents / path.name if given.documents else path for path in DOCUMENTS]
    tables, failed = kept(given.data if given.data.exists() else DATA), 0
    if not given.write and not given.check:
        for name in given.tables or MEASURES:
            lacking = missing(MEASURES[name][0])
            if lacking:
                print(f"{name}: not measured: {lacking}", file=sys.stderr)
                continue
            key, table = measured(name, given.small)
            if not table.figures:
                print(f"{name}: nothing was measured: {table.rows}", file=sys.stderr)
                failed += 1
                continue
            tables[key] = table
            keep(tables, given.data)
    wrong = 0
    for path in documents:
        text = path.read_text(encoding="utf-8")
        wanted = rendered(with_tables(text, list(tables)), tables)
        if text != wanted and given.check:
            print(f"{path.name} is not what {given.data.name} says")
        elif text != wanted:
            path.write_text(wanted, encoding="utf-8")
            print(f"{path.name} written")
        wrong += text != wanted
    return int(failed > 0 or (given.check and wrong > 0))


def measured(name: str, small: bool) -> tuple[str, Table]:
    """Measure a table; return its name with the machine, and the table with machine, commit and date."""
    kind, measure = MEASURES[name]
    with tempfile.TemporaryDirectory() as folder:
        table = measure(Path(folder), small)
    here = describe()
    cpu = here["cpu"]
    commit = here["commit"][:10] + ("+" if here["uncommitted_changes"] else "")
    if kind == "gpu":
        model = (target("gpu").machine() or {})["model"]
        label, machine = model.partition(",")[0].replace(" ", "-"), model
    else:
        label, load = platform().cpu, here["load_average"]
        machine = f"{cpu['model']} ({label}, {cpu['vector_bits']} bits), {cpu['cores']} cores, load {load:.1f}"
    return f"{name}@{label}", replace(table, machine=machine, commit=commit or "unknown", date=here["date"][:10])


if __name__ == "__main__":
    sys.exit(main())
