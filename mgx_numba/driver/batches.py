"""The batch size of the highest throughput: one program for each size, timed and compared."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError, OptionError, UnsupportedError
from .compiling import compile_model
from .feeding import make_inputs
from .loading import load_model
from .progress import track
from .timing import average

__all__ = ["BatchTime", "measure_batches", "parse_sizes", "plot_batches", "write_batches"]


@dataclass(frozen=True)
class BatchTime:
    """Seconds of one run of a batch of ``size``."""

    size: int
    seconds: float

    @property
    def rate(self) -> float:
        """Inferences a second."""
        return self.size / self.seconds


def parse_sizes(text: str) -> list[int]:
    """Sizes from ``1,2,4``.

    Raises:
        OptionError: something else.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise OptionError(f"--batch-sizes is {text!r}, expected positive integers separated by commas")
    return list(dict.fromkeys(int(word) for word in words))


def measure_batches(args: argparse.Namespace, sizes: Sequence[int], iterations: int) -> list[BatchTime]:
    """Read, compile and time the model of ``args`` for each size of its open dimensions.

    Raises:
        OptionError: the model's inputs do not follow the batch size.
    """
    found = []
    for size in sizes:
        args.batch = size
        model = load_model(args)
        inputs = make_inputs(model, args)
        if not any(array.ndim and array.shape[0] == size for array in inputs.values()):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items()) or "none"
            raise OptionError(f"--batch-sizes: no input has a leading dimension that is open (inputs: {shapes})")
        compile_model(model, args)
        model.run(inputs)
        times = []
        for _ in track(range(iterations), iterations, f"Timing batches of {size}"):
            start = time.perf_counter()
            model.run(inputs)
            times.append(time.perf_counter() - start)
        found.append(BatchTime(size, average(times)))
    return found


def write_batches(times: Sequence[BatchTime]) -> None:
    """Print time and throughput of each size, and the best."""
    best = max(times, key=lambda t: t.rate)
    print(f"{'batch':>6}  {'ms':>10}  {'ms each':>10}  {'inferences/s':>12}  {'of best':>7}")
    for entry in times:
        each, share = entry.seconds / entry.size, entry.rate / best.rate
        print(f"{entry.size:6}  {entry.seconds * 1e3:10.4g}  {each * 1e3:10.4g}  {entry.rate:12.5g}  {share:7.1%}")
    print(f"Best batch size: {best.size}, {best.rate:.6g} inferences/sec")


def plot_batches(times: Sequence[BatchTime], path: str, title: str) -> None:
    """Draw throughput over batch size into a PNG file.

    Raises:
        UnsupportedError: matplotlib is not installed.
        FormatError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("--plot needs matplotlib: install mgx_numba[report]") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    ordered = sorted(times, key=lambda t: t.size)
    axes.plot([t.size for t in ordered], [t.rate for t in ordered], marker="o", color="black")
    axes.set_xscale("log", base=2)
    axes.set_xticks([t.size for t in ordered], [str(t.size) for t in ordered])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="batch size", ylabel="inferences per second", title=title)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(Path(path), format="png", dpi=150)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
