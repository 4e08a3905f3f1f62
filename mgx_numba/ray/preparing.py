"""`prepare`: a model made ready on one machine for many of its kind."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..api.functions import parse_onnx
from ..api.loading import load
from ..api.program import program
from ..api.saving import save_buffer
from ..core.generate import generate
from ..core.shape import DynamicDimension, Shape
from ..errors import OptionError
from .rows import input_shapes

_SECONDS = 0.2
"""Of measuring one batch size, after a first run: tens of runs of a model that takes milliseconds."""
_FEWEST_RUNS = 3  # of a batch size, however slow they are


def prepare(
    model: program | str | os.PathLike[str],
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    row_lens: Mapping[str, Sequence[int]] | None = None,
    **options: Any,
) -> bytes:
    """Compile a model for Ray actors; return an ``.mxr`` file with its tuning records and machine code.

    If the model's leading dimension is open, each batch size is measured. The size with the most rows/s and all smaller
    measured sizes become the ``optimals`` of that dimension. `Predictor` and `deployment` run batches of these sizes;
    the file has all their kernels.

    Args:
        model: a program, which is not modified, or the path of an ONNX or ``.mxr`` file.
        batch_sizes: batch sizes to measure; a single size is used without measuring. Include 1 for single requests.
        row_lens: by input name, lengths of its other open dimensions during the measurement.
        options: options of ``program.compile``. ``num_threads`` must equal the CPUs of an actor.

    Raises:
        UnsupportedError: the inputs share no leading dimension.
        OptionError: ``batch_sizes`` is empty, the model does not accept one of them, or an open length is not given.
        MgxError: the model cannot be read or compiled.
    """
    model = model.clone() if isinstance(model, program) else _read(os.fspath(model))
    shapes = input_shapes(model)
    if any(s.dims[0].is_fixed for s in shapes.values()):
        return save_buffer(model.compile(**options), embed_objects=True)
    sizes = sorted({int(size) for size in batch_sizes})
    if not sizes or sizes[0] < 1:
        raise OptionError(f"batch_sizes is {list(batch_sizes)}, expected at least one, all at least 1")
    rows = {name: _row(name, s, (row_lens or {}).get(name)) for name, s in shapes.items()}
    rates: dict[int, float] = {}
    for size in sizes:
        fixed = model.clone().reshape({name: [size, *lens] for name, lens in rows.items()})
        fixed.compile(**options)
        rates[size] = size / _seconds(fixed) if len(sizes) > 1 else 0.0
        model.tuning_records[:0] = fixed.tuning_records
    best = max(rates, key=lambda size: rates[size])
    kept = [size for size in sizes if size <= best]
    model.reshape({name: _best_at(s, kept) for name, s in shapes.items()})
    model.compile(**{**options, "exhaustive_tune": False})
    for size in kept:  # so that their kernels are among those that are saved
        model.run(_inputs({name: Shape(shapes[name].type, (size, *lens)) for name, lens in rows.items()}))
    return save_buffer(model, embed_objects=True)


def _read(path: str) -> program:
    return load(path).clone() if path.endswith((".mxr", ".migraphx")) else parse_onnx(path)


def _row(name: str, known: Shape, given: Sequence[int] | None) -> list[int]:
    """Lengths of the dimensions of an input after the first.

    Raises:
        OptionError: one is open, and none is given for it, or another number of them.
    """
    dims = known.dims[1:]
    lens = [d.min for d in dims] if given is None else list(given)
    if len(lens) != len(dims) or (given is None and not all(d.is_fixed for d in dims)):
        raise OptionError(f"row_lens has {given} for {name!r}, which is {known}: expected {len(dims)} lengths")
    return lens


def _best_at(known: Shape, sizes: Sequence[int]) -> list[DynamicDimension]:
    first, *others = known.dims
    return [DynamicDimension(first.min, first.max, frozenset(sizes), first.symbol), *others]


def _inputs(shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    return {name: generate(s).numpy() for name, s in shapes.items()}


def _seconds(fixed: program) -> float:
    """Of a run: the fastest, which other work on the machine disturbs least."""
    inputs = _inputs({name: s._value for name, s in fixed.get_parameter_shapes().items()})
    fixed.run(inputs)
    fastest, spent, runs = math.inf, 0.0, 0
    while spent < _SECONDS or runs < _FEWEST_RUNS:
        start = time.perf_counter()
        fixed.run(inputs)
        seconds = time.perf_counter() - start
        fastest, spent, runs = min(fastest, seconds), spent + seconds, runs + 1
    return fastest
