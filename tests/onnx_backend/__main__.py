"""Writes the manifest: `python -m tests.onnx_backend`.

Every test is run on every target; with ``--excluded`` only those that the manifest has, which is enough when nothing
that passed was touched.
"""

from __future__ import annotations

import re
import sys

import onnx

from mgx_numba.errors import MgxError

from ..frontends.onnx_cases import freezing
from .reasons import REASONS
from .runner import CONSTANT, MANIFEST, TARGETS, Exclusion, cases, manifest, run_case

_CONSTANT = re.compile("must be constant|dynamic|needs fixed")


def failure(target: str, name: str) -> str | None:
    """Return the reason why a test fails, ``None`` if it passes; a recorded reason is preferred to the error's
    message."""
    try:
        run_case(target, name)
    except MgxError as error:
        return REASONS.get(name) or _frozen(name, error) or " ".join(str(error).split())
    except AssertionError:
        return REASONS.get(name, "")
    return None


def _frozen(name: str, error: MgxError) -> str | None:
    names = freezing(name) if _CONSTANT.search(str(error)) else None
    return f"{CONSTANT} {' '.join(names)}" if names else None


def main(arguments: list[str]) -> int:
    found: list[Exclusion] = []
    for name in sorted(manifest() if "--excluded" in arguments else cases("ref")):
        reasons = {target: reason for target in TARGETS if (reason := failure(target, name)) is not None}
        if reasons:
            found.append(Exclusion(name, tuple(reasons), next(iter(reasons.values()))))
    counts = [f"{sum(t in e.targets for e in found)} on {t}" for t in TARGETS]
    head = [
        f"# Backend tests of onnx {onnx.__version__} that do not pass: {', '.join(counts)}, of {len(cases('ref'))}.",
        "# Written by: python -m tests.onnx_backend",
    ]
    MANIFEST.write_text("\n".join([*head, *(e.line for e in found)]) + "\n")
    print(head[0])
    unexplained = [e.name for e in found if not e.reason]
    if unexplained:
        print(f"wrong results, to be put right or explained in reasons.py: {' '.join(unexplained)}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
