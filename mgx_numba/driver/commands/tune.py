"""Tune a model and store the records in its file or a database, manage tuning records, or measure a GPU.

Without flags for records, every kernel choice is measured, and the compiled model is written to ``--output`` with its
records. ``--gpu`` without a model measures the rates of a device, on which the cost model's choices are based.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ...codegen.tuning.database import Database, default_path
from ...codegen.tuning.files import best, write_records
from ...codegen.tuning.record import TuningRecord
from ...codegen.tuning.source import keep_in_file
from ...errors import FormatError, OptionError
from ..arguments import add_compile, add_loader, add_output
from ..compiling import compile_model
from ..loading import load_model
from ..records import read_any, write_choices, write_difference, write_table
from ..writing import check_output, write_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_output(parser)
    group = parser.add_argument_group("records", "instead of tuning; FILE is an .mxr file, a JSON file or a database")
    action = group.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="print the records of a file, else of the database")
    action.add_argument("--explain", action="store_true", help="print how a model is solved, and why by no record")
    action.add_argument("--export", metavar="FILE", help="write the records of a file, else of the database, as JSON")
    action.add_argument("--import", dest="imports", nargs="+", metavar="FILE", help="add records to the database")
    action.add_argument("--merge", nargs="+", metavar="FILE", help="write the best records of all files to --output")
    action.add_argument("--diff", nargs=2, metavar="FILE", help="print what two files solve differently")
    action.add_argument("--prune", type=float, metavar="DAYS", help="drop older records from the database")
    group.add_argument("--database", metavar="FILE", help="a database in place of the user's")
    group.add_argument("--device-id", type=int, default=0, metavar="N", help="what --gpu without a model measures")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0; 1 if ``--diff`` found a difference.
    """
    database = Database(args.database or default_path())
    if args.list:
        write_table(*_source(args, database))
    elif args.explain:
        write_choices(compile_model(load_model(args), args).tuning_choices())
    elif args.export:
        records, _ = _source(args, database)
        _export(args.export, records)
        print(f"{len(records)} records written to {args.export}")
    elif args.imports:
        changed = database.put(best(record for path in args.imports for record in read_any(path)))
        print(f"{changed} records of {database.path} are new or better")
    elif args.merge:
        if args.output is None:
            raise OptionError("tune --merge needs --output FILE")
        keep_in_file(args.output, best(record for path in args.merge for record in read_any(path)))
    elif args.diff:
        return int(write_difference(*map(read_any, args.diff)) > 0)
    elif args.target == "gpu" and args.file is None and args.file_type is None:
        _measure(args.device_id)
    elif args.prune is not None:
        print(f"{database.prune(older_than_days=args.prune)} records dropped from {database.path}")
    else:
        _tune(args)
    return 0


def _measure(number: int) -> None:
    """Fit the machine record of device ``number``, print its old and new rates, and store the new record."""
    from ...targets.gpu.machine_rates import fit_machine

    before, after, path = fit_machine(number)
    for name, old in asdict(before).items():
        new = getattr(after, name)
        print(f"{name:16} {old if old == new else f'{old:.4g} -> {new:.4g}'}")
    print(f"kept in {path}")


def _tune(args: argparse.Namespace) -> None:
    if args.output or args.form:
        check_output(args)
    args.exhaustive_tune = True
    if args.database:
        args.problem_cache = [args.database, *args.problem_cache]
    model = compile_model(load_model(args), args)
    write_table(model.tuning_records, "model")
    if args.output or args.form:
        write_model(model, args)


def _source(args: argparse.Namespace, database: Database) -> tuple[list[TuningRecord], str]:
    """Return the records that a flag operates on, and their origin."""
    if args.file is not None:
        return read_any(args.file), args.file
    return database.records(), str(database.path)


def _export(path: str, records: list[TuningRecord]) -> None:
    try:
        write_records(path, records)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
