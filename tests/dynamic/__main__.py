"""``python -m tests.dynamic --lengths 50``: models with open dimensions on random lengths, against ONNX Runtime."""

from __future__ import annotations

import argparse
import sys

from mgx_numba.core.shape import DynamicDimension

from .models import MODELS
from .test_models import assert_like_onnxruntime


def main() -> int:
    """The command line; 1 if some model differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.dynamic", description=__doc__)
    parser.add_argument("--lengths", type=int, default=50, help="sets of lengths of each model; default 50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default=",".join(MODELS), help="default: all")
    parser.add_argument("--targets", default="ref,cpu")
    options = parser.parse_args()
    failed = False
    for name in options.models.split(","):
        for target in options.targets.split(","):
            try:
                assert_like_onnxruntime(
                    MODELS[name](), target, options.seed, options.lengths,
                    default_dyn_dim_value=DynamicDimension(0, 4096),
                )  # fmt: skip
            except AssertionError as error:
                failed = True
                print(f"{name} on {target}, seed {options.seed}: {error}")
            else:
                print(f"{name} on {target}: {options.lengths} sets of lengths agree")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
