"""Attention on the GPU beside torch's: the shapes of networks, float16, and float32 in each precision.

python -m bench.gpu_attention
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

from bench.gpu_tiles import Runner, torch_seconds
from mgx_numba.codegen.gpu.attention.flash import attention_solution
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.gemm import packed_strides

CASES = (
    (1, 12, 12, 128, 128, 64, False), (8, 12, 12, 384, 384, 64, False), (1, 12, 12, 197, 197, 64, False),
    (1, 12, 12, 1, 513, 64, False), (1, 32, 8, 1, 4096, 128, False), (4, 16, 16, 2048, 2048, 64, True),
    (4, 16, 16, 2048, 2048, 128, False),
)  # fmt: skip
"""Batch, heads, key heads, queries, keys, features, causal."""
KINDS = {"float16": (CASES, 2e-3), "medium": (CASES[:4], 4e-3), "high": (CASES[:4], 1e-5)}
"""Element type, or precision of float32, with its cases and the error that is right."""


def compare(torch: Any, runner: Runner, kind: str, case: tuple[Any, ...], allowed: float) -> str:
    """Check and time a case; torch's float32 is what it does with ``allow_tf32`` for ``medium``."""
    batch, heads, shared, queries, keys, depth, causal = case
    dtype = torch.float16 if kind == "float16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = kind == "medium"
    q = torch.randn(batch, heads, queries, depth, device="cuda").to(dtype)
    k, v = (torch.randn(batch, shared, keys, depth, device="cuda").to(dtype) for _ in range(2))
    out = torch.full_like(q, float("nan"))
    own = packed_strides((batch, heads, queries, depth))
    theirs = packed_strides((batch, shared, keys, depth))
    problem = AttentionProblem(
        batch, heads, shared, queries, keys, depth, depth, own, theirs, theirs, own, str(dtype).removeprefix("torch."),
        float(1 / np.sqrt(depth)), causal,
    )  # fmt: skip
    library = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=heads != shared)
    wanted = library(q.double(), k.double(), v.double())
    theirs_seconds = torch_seconds(torch, partial(library, q, k, v))
    solution = attention_solution(problem, kind, pairs=True)
    places = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr(), "out": out.data_ptr()}
    seconds = runner.seconds(solution, places)
    error = float((out.double() - wanted).norm() / wanted.norm())
    return (
        f"{kind:8} {batch}x{heads}/{shared} {queries}x{keys} d{depth} {'causal' * causal:6}: torch"
        f" {1e6 * theirs_seconds:7.1f} us, ours {1e6 * seconds:7.1f} ({theirs_seconds / seconds:.2f}),"
        f" {problem.flops / seconds / 1e12:.0f} TF, error {error:.1e} {'' if error < allowed else 'WRONG'}"
    )


def main() -> int:
    """Check and time all of them."""
    import torch

    torch.cuda.init()
    runner = Runner()
    for kind, (cases, allowed) in KINDS.items():
        for case in cases:
            print(compare(torch, runner, kind, case, allowed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
