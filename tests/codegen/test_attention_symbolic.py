"""Attention planned once for symbolic lengths: the same numbers as NumPy for the lengths of each run."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.alternatives import at_lengths
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.attention import AttentionProblem, MaskLayout, plan
from mgx_numba.core.dim import Dim, Length, evaluate
from tests.values import normal

from ..features import features
from .contracting import run_plan
from .symbolic import planned, scope_of
from .test_attention import HEADS_LAST, expected

LENGTHS = [(1, 1, 1), (1, 1, 700), (4, 1, 2), (1, 2, 5), (4, 3, 64), (2, 5, 33), (1, 17, 300), (3, 64, 1), (1, 129, 7)]
"""Sequences, queries, and keys before these."""

emulated_tiles = features([host.EMULATED_TILES])


def cached(
    b: Length, h: int, kv: int, s: Length, t: Length, d: int, mask: MaskLayout | None, **how: bool
) -> AttentionProblem:
    """Queries and results as projections have them, keys and values as caches do."""
    own, cache = (s * h * d, d, h * d, 1), (t * kv * d, t * d, d, 1)
    return AttentionProblem(
        batch=b, heads=h, kv_heads=kv, queries=s, keys=t, depth=d, width=d, q_strides=own, k_strides=cache,
        v_strides=cache, out_strides=own, scale=d**-0.5, mask=mask, **how,
    )  # fmt: skip


def check(problem: AttentionProblem, values: dict[Dim, int], threads: int, tolerance: float = 5e-6) -> None:
    solution, condition = planned(plan, problem, threads)
    assert evaluate(condition, values) == 1
    p = at_lengths(problem, values)
    q = normal(p.batch, p.queries, p.heads, p.depth, seed=1, dtype=np.float32).transpose(HEADS_LAST)
    k, v = (normal(p.batch, p.kv_heads, p.keys, p.depth, seed=n, dtype=np.float32) for n in (2, 3))
    out = np.full((p.batch, p.queries, p.heads, p.width), 7.25, np.float32).transpose(HEADS_LAST)
    arrays, mask = {"q": q, "k": k, "v": v, "out": out}, None
    if p.mask is not None:
        lens = (p.batch, p.heads, p.queries, p.keys)
        own = normal(*(n if stride else 1 for n, stride in zip(lens, p.mask.strides)), seed=4, dtype=np.float32)
        own = own > 0.3 if p.mask.dtype == "bool" else own
        arrays["mask"], mask = own, np.broadcast_to(own, lens)
    run_plan(at_lengths(solution, values), arrays)
    want = expected(q, k, v, mask, p.scale, p.causal)
    np.testing.assert_allclose(out, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("form", "heads", "threads"),
    [
        ("plain", (2, 2), 1), ("causal", (4, 2), 4), ("causal", (8, 1), 1), ("add", (8, 1), 1), ("add", (4, 2), 4),
        ("keys", (4, 2), 1), ("window", (2, 2), 4),
    ],
)  # fmt: skip
def test_lengths_of_a_growing_cache(form: str, heads: tuple[int, int], threads: int) -> None:
    scope, symbols = scope_of(batch=(0, None), seq=(0, None), past=(0, None))
    b, s, t = symbols["batch"], symbols["seq"], symbols["past"] + symbols["seq"]
    mask = {
        "add": MaskLayout("float32", (s * t, 0, t, 1), b),
        "keys": MaskLayout("bool", (t, 0, 0, 1), b),
        "window": MaskLayout("bool", (0, 0, t, 1)),
    }.get(form)
    problem = cached(b, *heads, s, t, 32, mask, causal=form in ("causal", "keys"))
    solution, _ = planned(plan, problem, threads)
    assert not scope.guards
    assert len(solution.launches) <= 6
    for lengths in LENGTHS:
        check(problem, dict(zip(symbols.values(), lengths)), threads)


def test_one_query_with_a_growing_cache_has_one_kernel() -> None:
    scope, symbols = scope_of(batch=(0, None), past=(0, None))
    problem = cached(symbols["batch"], 8, 2, 1, symbols["past"] + 1, 64, None, causal=True)
    solution, condition = planned(plan, problem, 1)
    assert condition == 1 and len(solution.launches) == 1 and not scope.guards
    for batch, past in ((1, 1), (4, 699), (2, 33)):
        check(problem, dict(zip(symbols.values(), (batch, past))), 4)


@pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
@pytest.mark.usefixtures("emulated_tiles")
def test_tiles_of_whole_matrices() -> None:
    _, symbols = scope_of(batch=(0, None), seq=(0, None), past=(0, None))
    b, s, t = symbols["batch"], symbols["seq"], symbols["past"] + symbols["seq"]
    problem = cached(b, 4, 2, s, t, 32, None, causal=True, products_in_parts=True)
    solution, _ = planned(plan, problem, 2)
    assert any(kernel.name.startswith("attention_parts") for kernel in solution.kernels)
    for lengths in LENGTHS:
        check(problem, dict(zip(symbols.values(), lengths)), 2, 5e-4)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("heads", [(2, 2), (8, 2)])
def test_the_same_kernels_and_arguments_as_for_known_lengths(heads: tuple[int, int], threads: int) -> None:
    _, symbols = scope_of(batch=(0, None), seq=(0, None), past=(0, None))
    b, s, t = symbols["batch"], symbols["seq"], symbols["past"] + symbols["seq"]
    for mask in (None, MaskLayout("float32", (s * t, 0, t, 1), b)):
        problem = cached(b, *heads, s, t, 64, mask, causal=mask is None)
        solution, _ = planned(plan, problem, threads)
        for lengths in (*LENGTHS, (2, 1, 5000), (9, 300, 2000)):
            values = dict(zip(symbols.values(), lengths))
            taken = [launch for launch in at_lengths(solution, values).launches if not launch.empty]
            wanted = plan(at_lengths(problem, values), threads).launches
            for one, other in zip(taken, wanted, strict=True):
                assert (one.kernel, one.geometry) == (other.kernel, other.geometry)
                numbers = [[arg for arg in launch.args if isinstance(arg, int)] for launch in (one, other)]
                assert numbers[0] == numbers[1]
