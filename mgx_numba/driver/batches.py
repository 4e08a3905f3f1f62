"""Batch size of a model: its detection, the same model for another batch size, and the search for the batch size of
highest throughput, which compiles and times one program for each size."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..api.program import program
from ..dataclass import dataclass
from ..errors import FormatError, MgxError, OptionError, UnsupportedError
from ..graph.program import Program
from ..graph.specialize import is_dynamic, specialize
from ..targets.registry import DEFAULT, target
from .compare import default_tolerance
from .compiling import compile_model
from .feeding import make_inputs
from .loading import file_type, load_model
from .measure import Repeats, average
from .verifying import check_results
from .writing import check_writable

_Model = tuple[int, program, dict[str, np.ndarray]]


@dataclass(frozen=True)
class BatchTime:
    """Time (s) of a run with a batch of ``size`` inferences."""

    size: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return the throughput in inferences per second."""
        return self.size / self.seconds


def parse_sizes(text: str) -> list[int]:
    """Return the sizes in a list such as ``1,2,4``.

    Raises:
        OptionError: the text has another form.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise OptionError(f"--batch-sizes is {text!r}, expected positive integers separated by commas")
    return list(dict.fromkeys(int(word) for word in words))


def measure_batches(args: argparse.Namespace, sizes: Sequence[int], repeats: Repeats) -> list[BatchTime]:
    """Compile and time the model of ``args`` for each batch size.

    A size replaces the open dimensions, or the fixed leading lengths. A model with fixed lengths is parsed again with
    other lengths, and must compute the same results for the same inferences.

    Raises:
        OptionError: the model does not follow the batch size.
    """
    base = load_model(args)
    models = (_open_models if has_open_batch(args, base) else _fixed_models)(args, base, sizes)
    found = []
    for size, model, inputs in models:
        times = repeats.times(functools.partial(model.run, inputs), f"Timing batches of {size}")
        found.append(BatchTime(size, average(times)))
    return found


def _open_models(args: argparse.Namespace, base: program, sizes: Sequence[int]) -> Iterator[_Model]:
    def load(size: int) -> tuple[program, dict[str, np.ndarray]]:
        sized = argparse.Namespace(**{**vars(args), "batch": size})
        model = load_model(sized)
        inputs = make_inputs(model, sized)
        if not any(array.shape[:1] == (size,) for array in inputs.values()):
            shapes = ", ".join(f"{name} {{{shape}}}" for name, shape in model.get_parameter_shapes().items())
            raise OptionError(f"--batch-sizes: no input takes a batch of {size} (inputs: {shapes})")
        return model, inputs

    for size in sizes:
        load(size)  # raise for a wrong size before measuring others
    for size in sizes:
        model, inputs = load(size)
        yield size, compile_model(model, args), inputs


def _fixed_models(args: argparse.Namespace, base: program, sizes: Sequence[int]) -> Iterator[_Model]:
    inputs = make_inputs(base, args)
    for size in sizes:
        load_batch(args, base, inputs, size)  # raise for a wrong size before measuring others
    compile_model(base, argparse.Namespace(**{**vars(args), "exhaustive_tune": False}))
    drawn = argparse.Namespace(**{**vars(args), "load_arg": []})  # --load-arg files have the original batch size
    for size in sizes:
        model = compile_model(load_batch(args, base, inputs, size), args)
        check_rows(base, inputs, model, size)
        yield size, model, make_inputs(model, drawn)


def write_batches(times: Sequence[BatchTime]) -> None:
    """Print time and throughput of each size, and the best size."""
    best = max(times, key=lambda t: t.rate)
    print(f"{'batch':>6}  {'ms':>10}  {'ms each':>10}  {'inferences/s':>12}  {'of best':>7}")
    for entry in times:
        each, share = entry.seconds / entry.size, entry.rate / best.rate
        print(f"{entry.size:6}  {entry.seconds * 1e3:10.4g}  {each * 1e3:10.4g}  {entry.rate:12.5g}  {share:7.1%}")
    print(f"Best batch size: {best.size}, {best.rate:.6g} inferences/sec")


def check_plot(path: str) -> None:
    """Raise early, before measuring, if `plot_batches` will not be able to write the file.

    Raises:
        UnsupportedError: matplotlib is not installed.
        FormatError: the file's folder is missing or cannot be written.
    """
    check_writable(path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UnsupportedError("--plot needs matplotlib: install mgx_numba[report]") from None


def machine_line(args: argparse.Namespace) -> str:
    """Return target, CPU or device, and number of threads in one line, for a plot."""
    name = args.target or DEFAULT
    machine = target(name).machine() or {}
    threads = args.num_threads or machine.get("threads", "")
    words = [name, machine.get("cpu") or machine.get("device", ""), f"{threads} threads" if threads else ""]
    return ", ".join(filter(None, words))


def plot_batches(times: Sequence[BatchTime], path: str, title: str, machine: str = "") -> None:
    """Plot throughput and latency over batch size into a PNG file.

    Args:
        times: the measured times.
        path: path of the file.
        title: name of the model.
        machine: description of the machine from `machine_line`.

    Raises:
        UnsupportedError: matplotlib is not installed.
        FormatError: the file cannot be written.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7), layout="constrained")
    rates, latencies = FigureCanvasAgg(figure).figure.subplots(2, sharex=True)
    ordered = sorted(times, key=lambda t: t.size)
    sizes = [t.size for t in ordered]
    rates.plot(sizes, [t.rate for t in ordered], marker="o", color="black")
    latencies.plot(sizes, [t.seconds * 1e3 for t in ordered], marker="o", color="black")
    for axes, label in ((rates, "inferences per second"), (latencies, "latency of a run (ms)")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, list(map(str, sizes)))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    rates.set_title(machine, fontsize="medium")
    figure.suptitle(title)
    latencies.set_xlabel("batch size")
    try:
        figure.savefig(Path(path), format="png", dpi=150)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


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
