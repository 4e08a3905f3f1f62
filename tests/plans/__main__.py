"""Record the plans of ONNX's node tests, the benchmark's models, and each solver: ``python -m tests.plans --out FILE``.

``python -m tests.plans --compare BEFORE AFTER`` prints what differs between two such files; the exit status is 1 if
anything does. No kernel is compiled. ``MGX_CPU_FEATURES`` narrows the CPU that is planned for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from mgx_numba.codegen.cpu.machine import machine

from .compare import differences
from .models import model_programs, node_programs, record_programs
from .record import Record
from .solvers import record_solvers


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plans", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="file to write")
    what.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="files to compare")
    parser.add_argument("--threads", type=int, default=2, help="threads to plan for (default: 2)")
    parser.add_argument("--scale", choices=("tiny", "full"), default="tiny", help="of the models (default: tiny)")
    parser.add_argument("--shown", type=int, default=5, help="differences to print in full (default: 5)")
    given = parser.parse_args(arguments)
    if given.compare:
        before, after = (json.loads(path.read_text()) for path in given.compare)
        found = differences(before, after)
        print("\n\n".join(found[: given.shown]))
        print(f"{len(found)} of {len(before['plans'].keys() | after['plans'].keys())} plans differ")
        return int(bool(found))
    started, record = time.process_time(), Record()
    record_programs(record, node_programs(), given.threads)
    record_programs(record, model_programs(given.scale), given.threads)
    record_solvers(record, given.threads)
    here = machine()
    about = {"cpu": [here.cpu.name, here.cpu.feature_string], "caches": here.last_cache_bytes, "threads": given.threads}
    content = {"about": about, "plans": record.plans, "kernels": record.kernels}
    given.out.write_text(json.dumps(content, sort_keys=True))
    failed = sum("error" in plan for plan in record.plans.values())
    print(
        f"{len(record.plans)} plans ({failed} refused), {len(record.kernels)} kernels, "
        f"{time.process_time() - started:.0f} s of CPU"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
