"""Random models of one or two operators on the CPU: CPU time of one thread against ONNX Runtime's.

    python -m bench.cpu_random [KIND ...] [--count N] [--seed N] [--exact] [--below R] [--only TEXT] [--json FILE]

Both engines run in one process, in interleaved blocks; a problem's figure is the median over blocks of ONNX Runtime's
`time.process_time` over ours, so that other processes of the machine disturb it little. ``--exact`` adds the figures
of ``fast_math=False``. Problems whose figure is below ``--below``, or whose results differ from ONNX Runtime's, are
listed. ``MGX_CPU_FEATURES=avx2`` narrows our instruction set; ONNX Runtime needs a CPU without AVX-512 for a fair
comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mgx_numba
from bench.drawn_models import KINDS, drawn
from bench.timing import geometric_mean

BLOCKS, BLOCK_SECONDS, MOST_CALLS = 7, 0.01, 400
ALLOWED, ALLOWED_STEP = 2e-3, 0.2
"""Largest difference to ONNX Runtime's result over the result's largest magnitude that is not reported: that of
`fast_math`, and in 8 bits one step, some of which results of few elements have."""


def peer(model: onnx.ModelProto) -> Any:
    """Return ONNX Runtime's session of one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def seconds(runs: Sequence[Callable[[], Any]]) -> np.ndarray:
    """Return CPU seconds of a call: one row for each of `BLOCKS` blocks, one column for each of ``runs``."""
    calls = []
    for run in runs:
        run()
        begin = time.process_time()
        run()
        calls.append(int(np.clip(BLOCK_SECONDS / max(time.process_time() - begin, 1e-6), 1, MOST_CALLS)))
    table = np.empty((BLOCKS, len(runs)))
    for row in table:
        for k, run in enumerate(runs):
            begin = time.process_time()
            for _ in range(calls[k]):
                run()
            row[k] = (time.process_time() - begin) / calls[k]
    return table


def difference(own: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest difference over the largest magnitude, over all results; infinity for other shapes."""
    worst = 0.0
    for a, b in zip(own, theirs, strict=True):
        a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        if a.shape != b.shape:
            return float("inf")
        if a.size:
            found = np.nan_to_num(np.abs(a - b), nan=0.0, posinf=0.0)
            worst = max(worst, float(found.max()) / max(float(np.nan_to_num(np.abs(b), posinf=0.0).max()), 1e-6))
    return worst


def measured(kind: str, seed: int, index: int, exact: bool) -> dict[str, Any]:
    """Return a problem's figures."""
    label, model, feeds = drawn(kind, seed, index)
    session = peer(model)
    programs = []
    for fast_math in (True, False)[: 1 + exact]:
        program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
        program.compile(mgx_numba.get_target("cpu"), num_threads=1, fast_math=fast_math)
        programs.append(program)
    runs: list[Callable[[], Any]] = [lambda: session.run(None, feeds)]
    runs += [lambda p=p: p.run(feeds) for p in programs]  # type: ignore[misc]
    error = difference(runs[1](), runs[0]())
    table = seconds(runs)
    ratios = np.median(table[:, :1] / table[:, 1:], axis=0)
    return {
        "kind": kind, "index": index, "label": label, "error": error,
        "us": [round(1e6 * float(t), 2) for t in np.median(table, axis=0)],
        "ratios": [round(float(r), 3) for r in ratios],
    }  # fmt: skip


def main() -> int:
    """Measure the selected kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--count", type=int, default=30, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exact", action="store_true", help="with figures of fast_math=False")
    parser.add_argument("--below", type=float, default=0.9, help="ratio below which a problem is listed")
    parser.add_argument("--only", default="", help="only problems whose label holds this text")
    parser.add_argument("--json", default="", help="file for the figures")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in given.kinds or KINDS:
        for index in range(given.count):
            if given.only and given.only not in drawn(kind, given.seed, index)[0]:
                continue
            try:
                row = measured(kind, given.seed, index, given.exact)
            except Exception as error:  # a random model that an engine refuses
                print(f"refused {kind} {index}: {drawn(kind, given.seed, index)[0]}: {str(error)[:150]}", flush=True)
                continue
            rows.append(row)
            differs = row["error"] > (ALLOWED_STEP if kind == "quantised" else ALLOWED)
            if min(row["ratios"]) < given.below or differs:
                wrong = f" DIFFERS {row['error']:.1e}" if differs else ""
                print(f"  {kind} {index}: {row['ratios']} {row['us']} us {row['label']}{wrong}", flush=True)
        for mode in range(1 + given.exact):
            ratios = [row["ratios"][mode] for row in rows if row["kind"] == kind]
            least, slow = min(ratios, default=0.0), sum(r < given.below for r in ratios)
            figures = f"mean {geometric_mean(ratios):.2f}, least {least:.2f}, {slow} below {given.below}"
            print(f"{kind}{', exact' * mode}: {len(ratios)} problems, {figures}", flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps(rows, indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
