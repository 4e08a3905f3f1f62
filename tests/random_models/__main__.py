"""Random models against ONNX Runtime: ``python -m tests.random_models --seeds 0:2000``.

Prints every seed whose results differ or that decides nothing, minimised if asked for, and a summary. The exit status
is 1 if any differs.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import sys
import time
from functools import partial
from typing import Any

from .check import CONFIGURATIONS, Outcome, check
from .generate import Case, generate, operators_of
from .minimise import describe, minimise

PROGRESS = 100
"""Seeds after which a line says how far it is."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_models", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first and one past the last, or one seed (default: 0:200)")
    parser.add_argument("--minimise", action="store_true", help="shrink and print every model that differs")
    parser.add_argument(
        "--targets",
        default=",".join(CONFIGURATIONS),
        help="configurations besides ref, none of them if empty (default: %(default)s)",
    )
    parser.add_argument("--print", action="store_true", help="print every model")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    targets = {name: CONFIGURATIONS[name] for name in given.targets.split(",") if name}
    first, _, end = given.seeds.partition(":")
    kinds: collections.Counter[str] = collections.Counter()
    operators: collections.Counter[str] = collections.Counter()
    decided = 0.0
    started = time.process_time()
    for seed in range(int(first), int(end or int(first) + 1)):
        case = generate(seed)
        if given.print:
            print(f"seed {seed}\n{describe(case)}", flush=True)
        outcome = check(case, targets)
        kinds[outcome.kind] += 1
        decided += outcome.decided
        if (seed + 1) % PROGRESS == 0:
            print(f"up to seed {seed}: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}", flush=True)
        operators.update(operators_of(case.model.graph))
        if outcome.kind in ("differs", "oracle"):
            print(f"seed {seed}: {outcome.kind}: {outcome.where}: {outcome.message}", flush=True)
        if outcome.kind == "differs" and given.minimise:
            only = {outcome.where: CONFIGURATIONS[outcome.where]} if outcome.where in CONFIGURATIONS else {}
            small = minimise(case, partial(_alike, outcome, only))
            print(f"{describe(small)}\n{check(small, only).message}\n", flush=True)
    print(
        ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()), f"({time.process_time() - started:.0f} s of CPU)"
    )
    print(f"rounding leaves {decided / max(1, kinds['agrees']):.1%} of the elements decided where models agree")
    print(
        f"{len(operators)} operators in {sum(operators.values())} nodes:",
        ", ".join(f"{op} {n}" for op, n in operators.most_common()),
    )
    return 1 if kinds["differs"] else 0


def _alike(outcome: Outcome, targets: dict[str, Any], case: Case) -> bool:
    return check(case, targets).signature == outcome.signature


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
