"""LSTM on the GPU against cuDNN (by way of torch), in float32: a layer over 64 steps with the inputs' product.

    python -m bench.gpu_recurrent [--tiles] [--json FILE]

With ``--tiles`` all methods are measured: every tile that fits, and separate launches for each step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.gpu_tiles import torch_seconds
from mgx_numba.codegen.gpu.recurrent import plan
from mgx_numba.codegen.gpu.recurrent.tiles import PersistentTile, ranked_tiles
from mgx_numba.codegen.problems.recurrence import RecurrenceProblem
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.gpu.transfers import to_device
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.options import TargetOptions

STEPS = 64
CASES = ((256, 1, 1), (256, 16, 1), (256, 1, 2), (1024, 1, 1), (1024, 16, 1), (512, 1, 2), (1024, 1, 2))
"""Hidden units (equal to the inputs' features), sequences and directions."""
ALLOWED = 1e-4
"""Accepted error against float64, norm of the difference over norm of the results: `bench.exact`."""
ROUNDS = 10


def layer(torch: Any, hidden: int, directions: int) -> tuple[Any, list[np.ndarray]]:
    """Return torch's layer, and its weights, recurrent weights and biases in ONNX's form."""
    torch.manual_seed(hidden)
    made = torch.nn.LSTM(hidden, hidden, bidirectional=directions == 2).cuda()
    found: list[list[np.ndarray]] = [[], [], []]
    for suffix in ("", "_reverse")[:directions]:
        parts = [getattr(made, f"{name}_l0{suffix}").detach().cpu().numpy() for name in
                 ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]  # fmt: skip
        w, r, *biases = [np.concatenate([p.reshape(4, hidden, -1)[k] for k in (0, 3, 1, 2)]) for p in parts]
        for one, value in zip(found, (w, r, np.concatenate([b[:, 0] for b in biases]))):
            one.append(value)
    return made, [np.stack(one) for one in found]


def eager_seconds(torch: Any, run: Callable[[], Any]) -> float:
    """Return the seconds of a torch call without a graph."""
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)


def program_of(weights: list[np.ndarray], hidden: int, batch: int, directions: int) -> Program:
    """Return the layer as an ONNX-style program with zero initial states."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, (STEPS, batch, hidden)))
    functions = tuple(make_op(f) for f in ("sigmoid", "tanh", "tanh"))
    whole = m.add_instruction(
        "lstm", [x, *map(m.add_literal, weights)], hidden_size=hidden, actv_func=functions,
        direction="bidirectional" if directions == 2 else "forward",
    )  # fmt: skip
    m.add_return([whole])
    return program


@contextlib.contextmanager
def only(tile: PersistentTile | None) -> Iterator[None]:
    """Force a tile for recurrent steps inside a ``with`` block; None: a launch for each step."""
    with patch.object(plan, "ranked_tiles", lambda *_: [tile]):
        yield


def ways(weights: list[np.ndarray], case: tuple[int, int, int], every: bool) -> Iterator[tuple[str, GpuProgram]]:
    """Yield the chosen method, then the alternatives to measure."""
    ranked: list[PersistentTile | None] = []

    def noted(problem: RecurrenceProblem, *machine: Any) -> list[PersistentTile | None]:
        ranked[:] = ranked_tiles(problem, *machine)
        return ranked

    with patch.object(plan, "ranked_tiles", noted):
        yield "chosen", GpuProgram(program_of(weights, *case), TargetOptions())
    for tile in ranked[1:] if every else [None]:
        label = f"{tile.kind} u{tile.units} {tile.blocks}x{tile.slices}x{tile.directions}" if tile else ""
        with only(tile):
            yield label or "launches", GpuProgram(program_of(weights, *case), TargetOptions())


def compare(torch: Any, case: tuple[int, int, int], every: bool) -> dict[str, Any]:
    """Check and time a case; cuDNN multiplies in float32, too."""
    hidden, batch, directions = case
    torch.backends.cudnn.allow_tf32 = False
    theirs, weights = layer(torch, hidden, directions)
    x = torch.randn(STEPS, batch, hidden, device="cuda")
    with torch.no_grad():
        library = min(torch_seconds(torch, lambda: theirs(x)), eager_seconds(torch, lambda: theirs(x)))
        wanted = theirs.double()(x.double())[0].reshape(STEPS, batch, directions, hidden).permute(0, 2, 1, 3)
    right, given, times = wanted.cpu().numpy(), x.cpu().numpy(), {}
    for label, made in ways(weights, case, every):
        error = float(np.linalg.norm(np.asarray(made.run({"x": given})[0]) - right) / np.linalg.norm(right))
        if not error < ALLOWED:
            print(f"    WRONG {case} {label}: {error}", flush=True)
            continue
        assert made.executable is not None
        there = [to_device(made.executable.engine, given, "x")]
        times[label] = min(made.executable.seconds(there) for _ in range(ROUNDS))
    ours = times.get("chosen", float("nan"))
    print(
        f"lstm {hidden:5} x{directions} batch {batch:3}: cuDNN {1e6 * library:7.1f} us, ours {1e6 * ours:7.1f}"
        f" ({library / ours:.2f}) | {'; '.join(f'{n} {1e6 * s:.1f}' for n, s in times.items())}",
        flush=True,
    )
    return {"hidden": hidden, "batch": batch, "directions": directions, "cudnn": library, "times": times}


def main() -> int:
    """Check and time all cases; return 1 if results are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true", help="measure every tile that fits")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    import torch

    found = [compare(torch, case, given.tiles) for case in CASES]
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))
    return int(not all("chosen" in row["times"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
