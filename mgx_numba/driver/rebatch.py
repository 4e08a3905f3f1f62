"""Batch size of a model: its detection, and the same model for another batch size."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

from ..api.program import program
from ..dataclass import dataclass
from ..errors import MgxError, OptionError
from ..graph.program import Program
from ..graph.specialize import is_dynamic, specialize
from .compare import default_tolerance
from .loading import file_type, load_model
from .verifying import check_results

Inputs = Mapping[str, np.ndarray]
_RECURRENT = frozenset({"rnn", "gru", "lstm"})


@dataclass(frozen=True)
class Batch:
    """The number of inferences that a run makes.

    Attributes:
        size: number of inferences.
        origin: how it was determined, for output; empty if it was stated.
        leads: whether it is the leading length of all inputs of rank 2 or more, and of a result.
    """

    size: int
    origin: str = ""
    leads: bool = False


def batch_of(model: program, inputs: Inputs, stated: int = 0) -> Batch:
    """Return the batch of a model that runs on these inputs.

    It is ``stated`` (0: not stated) if an input has that length. Otherwise it is the batch of recurrent layers.
    Otherwise it is the common leading length of all inputs of rank 2 or more, if a result has it too; else 1.
    """
    if stated and any(stated in array.shape for array in inputs.values()):
        return Batch(stated)
    portable = model.portable
    if is_dynamic(portable):
        portable = specialize(portable, {name: array.shape for name, array in inputs.items()})
    leading = {array.shape[0] for array in inputs.values() if array.ndim > 1}
    leads = len(leading) == 1 and any(lens[:1] == tuple(leading) for lens in _result_lens(portable))
    for ins in portable.main:
        if ins.name in _RECURRENT:
            size = ins.inputs[0].shape.lens[1]
            return Batch(size, "that of the recurrent layers", leads and size in leading)
    if leads:
        return Batch(leading.pop(), "the leading length of inputs and results", leads)
    return Batch(1, "inputs and results have no leading length in common")


def has_open_batch(args: argparse.Namespace, model: program) -> bool:
    """Return whether an input's leading length follows ``--batch``: an ONNX file leaves it open, or it is a range."""
    portable = model.portable
    opened = file_type(args) == "onnx" and any(0 in axes for axes in portable.open_dims.values())
    return opened or any(s.is_dynamic and not s.dims[0].is_fixed for s in portable.parameter_shapes().values())


def load_batch(args: argparse.Namespace, model: program, inputs: Inputs, size: int) -> program:
    """Parse the model of ``args`` again for another batch size.

    The leading lengths of inputs are replaced; if that is not enough, also those of the constant shapes in the model.

    Args:
        model: the model of the unchanged file.
        inputs: inputs of ``model``.

    Raises:
        OptionError: there is no batch dimension, or the model does not follow; the message says why.
    """
    batch = batch_of(model, inputs)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items()) or "none"
    if file_type(args) != "onnx":
        raise OptionError(
            f"--batch-sizes: {args.file or '--test'} is no ONNX file, and no input has a leading dimension that is "
            f"open (inputs: {shapes})"
        )
    if not batch.leads:
        raise OptionError(
            "--batch-sizes: there is no leading length that inputs and results have in common, or it is not the batch "
            f"(inputs: {shapes})"
        )
    if args.dyn_input_dim:
        raise OptionError("--batch-sizes: --dyn-input-dim leaves no leading dimension open; give --input-dim instead")
    lens = {name: _resized(array.shape, batch.size, size) for name, array in inputs.items()}
    words = [word for name, dims in lens.items() for word in (f"@{name}", *map(str, dims))]
    sized = argparse.Namespace(**{**vars(args), "input_dim": words, "dim_param": []})
    problem = ""
    for rebatched in (None, (batch.size, size)):
        sized.rebatched = rebatched
        try:
            found = load_model(sized)
        except MgxError as error:
            problem = problem or str(error)
            continue
        wrong = _wrong_result(model, found, batch.size, size)
        if not wrong:
            return found
        problem = problem or wrong
    raise OptionError(f"--batch-sizes: the model does not take a batch of {size}: {problem}")


def _wrong_result(model: program, found: program, batch: int, size: int) -> str:
    """Return a message about the first result that does not follow the batch size; empty if all do."""
    pairs = zip(_result_lens(model.portable), _result_lens(found.portable))
    for number, (before, after) in enumerate(pairs):
        expected = _resized(before, batch, size, results=True)
        if after != expected:
            return f"result {number} is {list(after)}, expected {list(expected)} (it is {list(before)} for {batch})"
    return ""


def check_rows(model: program, inputs: Inputs, other: program, size: int) -> None:
    """Run a compiled model and its counterpart from `load_batch`, and compare the results of the same inferences.

    Raises:
        OptionError: results differ, so inferences of one batch depend on each other.
    """
    batch = batch_of(model, inputs).size
    repeated = {
        name: np.resize(array, _resized(array.shape, batch, size)) if array.ndim else array
        for name, array in inputs.items()
    }
    found, expected = other.run(repeated), model.run(inputs)
    rows = min(size, batch)
    compiled = model.compiled
    assert compiled is not None
    for number, (a, b) in enumerate(zip(found, expected)):
        if b.shape[:1] == (batch,):
            a, b = a[:rows], b[:rows]
        (check,) = check_results([a], [b], default_tolerance([compiled.resolve(inputs)]))
        if not check.difference.passed:
            raise OptionError(
                f"--batch-sizes: in a batch of {size}, result {number} differs from that of {batch}, so that "
                f"inferences of a batch depend on one another: {check.difference}"
            )


def _resized(lens: tuple[int, ...], batch: int, size: int, results: bool = False) -> tuple[int, ...]:
    """Return lengths for a batch of ``size``; an input vector of one element does not count as a batch of 1."""
    follows = lens[:1] == (batch,) and (results or len(lens) > 1 or batch > 1)
    return (size, *lens[1:]) if follows else lens


def _result_lens(portable: Program) -> list[tuple[int, ...]]:
    return [tuple(shape.max_lens) for shape in portable.output_shapes()]
