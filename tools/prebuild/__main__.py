"""Make or check the kernels that ship with a wheel.

    python -m tools.prebuild                      # plan the corpus for all machines, compile, write the files
    python -m tools.prebuild --machines znver5    # the same for one machine; the files keep the others' kernels
    python -m tools.prebuild --check              # plan and compile, and compare: exit status 1 if any kernel differs
    python -m tools.prebuild --coverage A.onnx    # how many kernels of models the files have
    python -m tools.prebuild --coverage           # the same of held-out networks
    python -m tools.prebuild --groups networks --only bert,gpt2 --machines znver5 --check   # a small part

It needs the extras ``bench`` and ``test``. ``python -m tools.release`` puts the files into wheels.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mgx_numba.codegen.cpu.kernel import NAME
from mgx_numba.codegen.files import replace_file
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.shipped import FOLDER, ShippedKernels
from tools.prebuild.build import Names, differences, files
from tools.prebuild.collect import Collector, collected
from tools.prebuild.corpus import GROUPS
from tools.prebuild.corpus.held_out import held_out
from tools.prebuild.corpus.item import Item, parsed
from tools.prebuild.machines import MACHINES, Machine

__all__ = ["main"]

LIMIT = 25_000_000
"""Most bytes of all files together."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.prebuild", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files (default: the package's)")
    parser.add_argument("--machines", default=",".join(MACHINES), help="CPUs (default: all)")
    parser.add_argument("--groups", default=",".join(GROUPS), help="parts of the corpus (default: all)")
    parser.add_argument("--only", default="", help="items of the corpus whose names begin with one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a CPU)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare the files with what compiling gives now")
    what.add_argument("--coverage", nargs="*", metavar="MODEL", help="tell how many kernels the files have")
    given = parser.parse_args(arguments)
    groups = given.groups.split(",")
    for option, asked, known in (("machines", given.machines.split(","), MACHINES), ("groups", groups, GROUPS)):
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"--{option}: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    if given.jobs < 1:
        parser.error(f"--jobs: expected an integer from 1 on, got {given.jobs}")
    machines = [MACHINES[name] for name in given.machines.split(",")]
    if given.coverage is not None:
        return _cover(given.out, machines, given.coverage)
    started = time.perf_counter()
    names = collected(machines, groups, given.jobs, tuple(given.only.split(",")))
    print(f"{sum(map(len, names.values()))} kernels planned in {time.perf_counter() - started:.0f} s", flush=True)
    if given.check:
        whole = not given.only and set(groups) == set(GROUPS)
        wrong = differences(given.out, machines, names, given.jobs, whole)
        print("\n".join(wrong) or "all these kernels are what compiling gives now")
        return int(bool(wrong))
    return _write(given.out, machines, names, given.jobs)


def _write(folder: Path, machines: Sequence[Machine], names: Names, jobs: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, data, lines in files(machines, names, jobs, folder):
        replace_file(folder / name, data)
        total += len(data)
        print(f"{name}, {len(data) / 1e6:.2f} MB:\n{lines}", flush=True)
    print(f"{total / 1e6:.2f} MB of at most {LIMIT / 1e6:.0f} MB")
    return int(total > LIMIT)


def _cover(folder: Path, machines: Sequence[Machine], paths: Sequence[str]) -> int:
    """Print the share of models' kernels that the files have; return 1 if a model cannot be read or compiled."""
    os.environ["MGX_PLAN_CACHE"] = "0"  # a cached plan would ask for no kernel
    items = [Item(Path(path).name, partial(parsed, path)) for path in paths] or list(held_out())
    shipped = ShippedKernels(folder)
    print(f"{'model':28}" + "".join(f"{one.cpu:>16}" for one in machines))
    sums = {one.cpu: [0, 0] for one in machines}
    lacked: Counter[str] = Counter()
    for item in items:
        collector = Collector(machines)
        collector.collect([item])
        if item.name in collector.failed:
            print(f"{item.name}: {collector.failed[item.name]}", file=sys.stderr)
            return 1
        shown = []
        for one in machines:
            with one.pretended():
                sources = [KernelSource(NAME, name, text) for text, name in collector.names[one.cpu].items()]
                missing = [source for source in sources if shipped.get(source) is None]
            had = len(sources) - len(missing)
            sums[one.cpu][0] += had
            sums[one.cpu][1] += len(sources)
            lacked.update(source.name for source in missing)
            shown.append(f"{had} of {len(sources)}")
        print(f"{item.name[:28]:28}" + "".join(f"{text:>16}" for text in shown), flush=True)
    print(f"{'all':28}" + "".join(f"{had / most:>16.0%}" for had, most in sums.values()))
    print("kernels that are missing:", ", ".join(f"{name} ({n})" for name, n in lacked.most_common()) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
