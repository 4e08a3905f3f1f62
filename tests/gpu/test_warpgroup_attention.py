"""Attention by warpgroups has the values of ref, for masks, head groups, tiles and rings; wrong waits are detected."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bench.gpu_attention import problem_of
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.attention import flash, warpgroups
from mgx_numba.codegen.gpu.attention.flash import attention_solution
from mgx_numba.codegen.gpu.attention.mask_bits import words_of
from mgx_numba.codegen.gpu.attention.warpgroups import AttentionTile
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid
from mgx_numba.core.shape import Shape
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import Step

from ..cpu.agreement import reference
from ..interpreter.lanes import KernelFault
from .programs import compiled, interpreter, labels
from .test_attention import BF16, BOOL, F16, F32, Mask, attention

SMALL = AttentionTile(1, 64, 2, 4)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use warpgroups for all problems that they support, even with few queries."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(warpgroups, "LEAST_QUERIES", 1)


def agree(
    lens: tuple[int, ...], tile: AttentionTile, on: Engine, monkeypatch: pytest.MonkeyPatch, **given: object
) -> None:
    """Compute and compare, with a tile; ``given`` as of `attention`."""
    monkeypatch.setattr(warpgroups, "chosen_tile", lambda _: tile)
    type = given.pop("type", F16)
    made = attention(type, lens, on, given.pop("mask", None), **given)  # type: ignore[arg-type]
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps if step.label != "gpu::mask_bits_kernel"]
    assert labels[0].startswith("gpu::attention_warpgroup")


@pytest.mark.parametrize(
    ("type", "lens", "mask", "tile"),
    [
        (F16, (1, 2, 1, 70, 300, 16, 24), None, AttentionTile(2, 64, 3, 1)),
        (F16, (1, 2, 1, 70, 300, 40, 40), None, AttentionTile(4, 64, 3, 1)),
        (F16, (1, 1, 1, 150, 300, 80, 80), None, AttentionTile(3, 64, 2, 1)),
        (F16, (1, 2, 1, 70, 300, 24, 72), None, AttentionTile(2, 64, 2, 1)),
        (BF16, (1, 1, 1, 150, 200, 16, 16), (BOOL, (150, 200)), AttentionTile(3, 64, 3, 1)),
        (BF16, (2, 1, 1, 65, 130, 40, 16), None, AttentionTile(1, 128, 2, 1)),
        (F16, (1, 1, 1, 3, 5, 8, 8), (F16, (3, 5)), SMALL),
        (F16, (2, 2, 2, 9, 140, 72, 136), (BOOL, (2, 1, 1, 140)), SMALL),
        (F16, (2, 2, 1, 70, 300, 40, 40), (BOOL, (2, 2, 70, 300)), AttentionTile(1, 128, 2, 1)),
        (F16, (1, 1, 1, 65, 200, 136, 136), (BOOL, (65, 200)), AttentionTile(2, 96, 2, 1)),
        (F16, (1, 2, 1, 33, 100, 32, 32), (BOOL, (1, 2, 1, 100)), AttentionTile(2, 96, 2, 1)),
        (BF16, (1, 2, 1, 17, 200, 32, 32), (F32, (1, 2, 17, 200)), SMALL),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_values(
    type: object, lens: tuple[int, ...], mask: Mask, tile: AttentionTile, causal: bool, on: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    agree(lens, tile, on, monkeypatch, type=type, mask=mask, causal=causal)


@pytest.mark.parametrize("nan_rows", [False, True])
@pytest.mark.parametrize("mask", [(BOOL, (1, 1, 5, 70)), (F16, (5, 70))])
def test_rows_that_see_no_key(mask: Mask, nan_rows: bool, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 5, 70, 16, 16), SMALL, on, monkeypatch, mask=mask, spoil=True, nan_rows=nan_rows)


@pytest.mark.parametrize("tile", [SMALL, AttentionTile(2, 64, 2, 1)])
def test_a_fill_replaces_scores_where_the_mask_does_not_keep(
    tile: AttentionTile, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree((1, 1, 1, 5, 140, 16, 16), tile, on, monkeypatch, mask=(BOOL, (1, 1, 5, 140)), spoil=True, fill=-1e9)


@pytest.mark.parametrize("tile", [SMALL, AttentionTile(2, 64, 2, 1)])
def test_first_queries_see_no_key(tile: AttentionTile, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 150, 7, 16, 16), tile, on, monkeypatch, causal=True)


def test_a_negative_scale(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 20, 70, 16, 16), SMALL, on, monkeypatch, scale=-0.3)


def qkv(lens: tuple[int, ...]) -> tuple[Program, dict[str, np.ndarray]]:
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    heads = [m.add_parameter(n, Shape(F16, lens)) for n in "qkv"]
    m.add_return([m.add_instruction("attention", heads, scale=0.3)])
    return program, {n: rng.standard_normal(lens).astype(np.float16) for n in "qkv"}


@pytest.mark.parametrize("words", [2, 3, 4])
def test_rows_of_a_mask_in_bits_hold_whole_tiles(words: int) -> None:
    """A tile of 96 keys that began at key 96 of 100 read two words behind the mask."""
    for keys in range(1, 700):
        assert words_of(keys) % 4 == 0 and -(-keys // (32 * words)) * words <= words_of(keys)


def test_layers_share_a_mask_in_bits(on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (1, 2, 70, 16)))
    mask = m.add_parameter("mask", Shape(BOOL, (70, 70)))
    spread = m.add_instruction("multibroadcast", [mask], out_lens=(1, 2, 70, 70))
    fixed = m.add_literal(np.tril(np.ones((1, 1, 70, 70), np.bool_)))
    spread_fixed = m.add_instruction("multibroadcast", [fixed], out_lens=(1, 2, 70, 70))
    y = x
    for own in (spread, spread_fixed, spread, spread_fixed):
        y = m.add_instruction("attention", [y, x, x, own], scale=0.25)
    m.add_return([y])
    given = {"x": rng.standard_normal((1, 2, 70, 16)).astype(np.float16), "mask": rng.random((70, 70)) > 0.5}
    given["mask"][:, 0] = True
    made = compiled(program, on)
    found = labels(made)
    assert found.count("gpu::mask_bits_kernel") == 1 and len(found) == 5
    (got,), (wanted,) = made.run(given), reference(program, given).results
    assert np.abs(got.astype(np.float64) - wanted).max() < 5e-3


def test_infinities_and_nan_stay_in_their_rows(on: Engine) -> None:
    program, inputs = qkv((1, 2, 70, 16))
    inputs["q"][0, 0, 3, 5], inputs["q"][0, 1, 66, 0] = np.nan, np.inf
    (got,), (wanted,) = compiled(program, on).run(inputs), reference(program, inputs).results
    strange = np.isnan(wanted).any(axis=3)
    assert strange.sum() == 2 and np.array_equal(np.isnan(got).any(axis=3), strange)
    assert np.abs(got[~strange].astype(np.float64) - wanted[~strange]).max() < 5e-3


def leave_out(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of attention are without a statement from now on."""
    written = flash.gpu_kernel

    def wrong(name: str, lines: list[str], *rest: object) -> KernelSource:
        assert any(text.strip() == line for text in lines)
        return written(name, [text.replace(line, "pass") for text in lines], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(flash, "gpu_kernel", wrong)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mbarrier_wait(offset(full_q, 0), 0)", "no box has come|on the way"),
        ("mbarrier_wait(offset(full_v, slot), phase)", "no box has come|on the way"),
        ("mbarrier_wait(offset(empty_k, slot), phase)", "may still be reading|on the way"),
        ("scores = wgmma_wait(scores, 1)", "reads sums that products may still be adding to"),
        ("acc = wgmma_wait(acc, 0)", "reads sums that products may still be adding to"),
    ],
)
def test_what_the_interpreter_says_of_wrong_synchronisation(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warpgroups, "chosen_tile", lambda _: AttentionTile(2, 64, 2, 1))
    leave_out(line, monkeypatch)
    program, inputs = qkv((1, 1, 300, 16))
    with pytest.raises(KernelFault, match=said):
        compiled(program, interpreter()).run(inputs)


def test_the_instructions_are_those_of_warpgroups() -> None:
    program, _ = qkv((1, 2, 128, 64))
    (kernel,) = compiled(program, interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    for wanted in ("wgmma.mma_async.sync.aligned.m64n", "cp.async.bulk.tensor.4d", "ex2.approx"):
        assert wanted in text, wanted
    assert ".local" not in text


@pytest.mark.parametrize("mask", [None, (2, 1, 1, 140)])
@pytest.mark.parametrize("causal", [False, True])
def test_products_do_not_wait_for_one_another_because_of_a_call(
    mask: tuple[int, ...] | None, causal: bool, on: Engine
) -> None:
    """Instructions that ptxas expands to calls: exact division and roots, and integer division of 64 bits."""
    (step,) = steps_of((2, 2, 1, 70, 140, 64, 64), on, mask and (BOOL, mask), causal=causal)
    text = assembly(step.kernel, ARCHITECTURES["sm_90a"])
    assert "wgmma.mma_async" in text
    assert not re.findall(r"\b(?:(?:div|rcp|sqrt)\.rn\S*|(?:div|rem)\.[su]64)", text)


@pytest.mark.parametrize("features", [40, 64, 128, 160, 256])
def test_tiles_fit_a_multiprocessor(features: int) -> None:
    lens = (1, 1, 512, features)
    program, _ = qkv(lens)
    made = compiled(program, interpreter())
    assert made.executable is not None
    (step,) = made.executable.plan.steps
    assert step.geometry.shared_bytes + 2048 <= ARCHITECTURES["sm_90a"].shared_bytes


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("keys", "pairs"), [(140, True), (71, False)])
def test_keys_of_a_mask_that_lie_apart_are_copied(keys: int, pairs: bool, constant: bool, on: Engine) -> None:
    """A table of relative positions has heads side by side: T5's attention took 29 us of which 20 were its mask."""
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    lens = {"q": (1, 2, 9, 16), "k": (1, 2, keys, 16), "v": (1, 2, keys, 16)}
    inputs = {name: rng.standard_normal(own).astype(np.float16) for name, own in lens.items()}
    heads = [m.add_parameter(name, Shape(F16, own)) for name, own in lens.items()]
    drawn = rng.standard_normal((9, keys, 2)).astype(np.float32)
    if not constant:
        inputs["mask"] = drawn
    table = m.add_literal(drawn) if constant else m.add_parameter("mask", Shape(F32, drawn.shape))
    mask = m.add_instruction("unsqueeze", [m.add_instruction("transpose", [table], permutation=(2, 0, 1))], axes=(0,))
    m.add_return([m.add_instruction("attention", [*heads, mask], scale=0.3)])
    made = compiled(program, on, fast_math=True)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), atol=4e-3)
    assert made.executable is not None
    steps = made.executable.plan.steps
    assert ("load_aligned(near0" in steps[-1].kernel.text) == pairs and len(steps) == (1 if constant else 2)


def steps_of(lens: tuple[int, ...], on: Engine, mask: Mask = None, **attributes: object) -> list[Step]:
    """Compute and compare; return the launches, but for that of the mask in bits."""
    made = attention(F16, lens, on, mask, **attributes)  # type: ignore[arg-type]
    assert made.executable is not None
    steps: list[Step] = [step for step in made.executable.plan.steps if step.label != "gpu::mask_bits_kernel"]
    return steps


@pytest.mark.parametrize("causal", [False, True])
def test_keys_of_few_blocks_are_split(causal: bool, on: Engine) -> None:
    """11 blocks of 98 queries took 3552 keys in turn while the other multiprocessors waited."""
    first, second = steps_of((1, 1, 1, 40, 1100, 16, 16), on, (BOOL, (1, 1, 1, 1100)), causal=causal)
    assert first.geometry.blocks == ((1, 9, 1) if causal else (1, 1, 9))  # causal ones are last along rows
    assert second.label == "gpu::join_attention_kernel"


@pytest.mark.parametrize(("case", "parts"), [((1, 6, 6, 1500, 1500, 64), 3), ((1, 6, 6, 1500, 96, 40), 1)])
def test_keys_of_blocks_that_fill_half_a_round_are_split(case: tuple[int, ...], parts: int) -> None:
    """144 blocks had the room of 264; of few keys the second launch takes longer than it saves."""
    with planning_for(H200):
        launches = attention_solution(problem_of("float16", (*case, False)), "highest").launches
    geometry = launches[0].geometry
    assert isinstance(geometry, Grid)
    assert geometry.blocks[2] == parts and len(launches) == 1 + (parts > 1)


def test_query_heads_of_a_group_share_tiles_of_rows(on: Engine) -> None:
    """Of a tile of 128 rows 40 were queries, of one of eight heads that read the same keys."""
    (step,) = steps_of((2, 4, 2, 35, 70, 16, 16), on, (F16, (2, 1, 1, 70)))
    assert step.geometry.blocks == (1, 2, 2)
    (apart,) = steps_of((2, 4, 2, 35, 70, 16, 16), on, (F16, (2, 4, 35, 70)), causal=True)
    assert apart.geometry.blocks == (4, 2, 1)
