"""Load mutated ``.mxr`` files: ``python -m tests.fuzz_mxr --files 20000 --seed 1``.

Each file must load right or be refused by an `MgxError`, without a crash, a hang, memory beyond twice its size and a
constant, or anything that is executed. ``--first i --files 1`` repeats file number ``i`` of a seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.examples import write_examples

__all__ = ["Outcomes", "fuzz"]

ROOT = Path(__file__).parents[1]


@dataclass
class Outcomes:
    """Counts of loaded and refused files, and failures by file number."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)


def fuzz(seed: int, files: int, first: int = 0) -> Outcomes:
    """Try files ``first`` to ``first + files`` of a seed, in a process that is started again after one ended it."""
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples"
        write_examples(examples)
        index, last = first, first + files
        while index < last:
            index = _run(outcomes, examples, seed, index, last)
    return outcomes


def _run(outcomes: Outcomes, examples: Path, seed: int, first: int, last: int) -> int:
    """Start a process at file ``first``; returns the file at which the next one is to start."""
    command = [sys.executable, "-m", "tests.mutation.trial", str(examples), *map(str, (seed, first, last))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        index, started = first, False
        assert process.stdout is not None
        for line in process.stdout:
            started = True
            number, outcome = line.split(" ", 1)
            kind = outcome.split(":")[0].strip()
            outcomes.counts[kind] += 1
            if kind == "failed":
                outcomes.failures[int(number)] = outcome.replace("\\n", "\n")
            index = int(number) + 1
        status = process.wait()
        if status or index < last:
            errors.seek(0)
            told = errors.read()[-4000:].decode(errors="replace")
            if not started and "Fatal" not in told and "Timeout" not in told:
                raise RuntimeError(f"the trial did not start: {told}")
            outcomes.counts["ended the process"] += 1
            outcomes.failures[index] = f"the process ended with status {status}\n{told}"
            index += 1
    return index


def main() -> int:
    parser = argparse.ArgumentParser(description="Load mutated .mxr files and report those that misbehave.")
    parser.add_argument("--files", type=int, default=20000, help="how many (default 20000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the mutations (default: from the clock)")
    args = parser.parse_args()
    seed = time.time_ns() % 10**9 if args.seed is None else args.seed
    print(f"seed {seed}, files {args.first} to {args.first + args.files - 1}", flush=True)
    start = time.perf_counter()
    outcomes = fuzz(seed, args.files, args.first)
    for number, failure in outcomes.failures.items():
        print(f"\n--seed {seed} --first {number} --files 1\n{failure}")
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.counts.items()))
    print(f"{counted}; {time.perf_counter() - start:.0f} s")
    return 1 if outcomes.failures else 0


if __name__ == "__main__":
    sys.exit(main())
