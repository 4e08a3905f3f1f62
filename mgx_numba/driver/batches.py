"""Search for the batch size of highest throughput: compiles and times one program for each size."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..api.program import program
from ..dataclass import dataclass
from ..errors import FormatError, OptionError, UnsupportedError
from ..targets.registry import DEFAULT, target
from .compiling import compile_model
from .feeding import make_inputs
from .loading import load_model
from .rebatch import check_rows, has_open_batch, load_batch
from .timing import Repeats, average
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
