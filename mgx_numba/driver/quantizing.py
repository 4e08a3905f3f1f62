"""Quantisation of a program by flags."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator

import numpy as np

from ..api.program import program
from ..api.quantizing import KINDS, quantize
from ..api.sensitivity import parse_accuracy
from ..errors import FormatError, OptionError
from ..progress import shown_progress
from ..targets.registry import DEFAULT
from .feeding import with_types
from .logs import LOG


def requested_kinds(args: argparse.Namespace) -> list[str]:
    """Return the members of `KINDS` that flags ask for.

    Raises:
        OptionError: calibration, accuracy or a report is requested without a fitting kind.
    """
    kinds = [kind for kind in KINDS if getattr(args, kind, False)]
    measured = {"fp16", "bf16"} & set(kinds)
    for flag in ("accuracy", "calibration", "quantization_report"):
        if not getattr(args, flag, None) or {"int8", "fp8"} & set(kinds):
            continue
        if flag == "accuracy" and not measured:
            raise OptionError("--accuracy has no effect without --int8, --fp8, --fp16 or --bf16")
        if flag != "accuracy" and not (measured and args.accuracy):
            name = flag.replace("_", "-")
            raise OptionError(f"--{name} has no effect without --int8, --fp8, or --accuracy with --fp16 or --bf16")
    return kinds


def quantize_model(model: program, args: argparse.Namespace) -> None:
    """Quantise the portable form in place, by flags.

    Raises:
        MgxError: flags contradict each other, or a calibration file is wrong.
    """
    kinds = requested_kinds(args)
    if not kinds:
        return
    target = args.target or (DEFAULT if model.compile_target is None else model.compile_target.name())
    accuracy = None if args.accuracy is None else parse_accuracy(args.accuracy)
    batches = (model._checked(with_types(model, batch)) for batch in _batches(args.calibration))
    with shown_progress("compiling") as progress:
        found = quantize(model.portable, kinds, target, batches, progress, accuracy)
    if found is not None:
        model._note_layers(*found)
    LOG.info("Quantised: %s", ", ".join(kinds))
    if args.quantization_report:
        print("\n".join(map(str, model.quantization_choices())))


def _batches(paths: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield one batch of inputs by name from each .npz file.

    Raises:
        FormatError: a file cannot be read.
    """
    for path in paths:
        try:
            found = np.load(path, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("one array without a name, expected an .npz file of inputs by name")
            with found:
                inputs = {name: found[name] for name in found.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FormatError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        yield inputs
