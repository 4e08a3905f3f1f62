"""Warpgroup products with operands loaded by TMA: values of ref, and faults that the interpreter detects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import solvers, wgmma, wgmma_tiles
from mgx_numba.codegen.gpu.contraction.gpu_contraction import line_padded, permuted_lanes
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import TileQuestion, WarpgroupTile
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import MappedTensor
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from ..interpreter import run as interpreter_run
from ..interpreter.lanes import KernelFault, Lanes
from ..interpreter.names import memory_names
from .programs import compiled, interpreter

F16, BF16, F32 = Type.half_type, Type.bf16_type, Type.float_type
ALLOWED = {F16: 2e-3, BF16: 2e-2, F32: 2e-3}
"""Errors relative to the largest result: those of rounding it, and of TF32."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use warpgroups for all problems that they support, even for small problems where others may be faster."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.Warpgroups(), solvers.Tiles()))


@pytest.fixture(
    params=[
        (WarpgroupTile(64, 64, 2, 1), 0),
        (WarpgroupTile(128, 128, 2, 2), 1),
        (WarpgroupTile(192, 64, 2, 1), 2),
        (WarpgroupTile(64, 128, 2, 1, 2), 2),
        (WarpgroupTile(64, 64, 2, 1, 1, 2), 2),
        (WarpgroupTile(64, 128, 2, 1, 2, 2), 4),
        (WarpgroupTile(64, 64, 3, 1, pingpong=2), 2),
        (WarpgroupTile(64, 64, 3, 1, pingpong=3), 1),
        (WarpgroupTile(64, 96, 2, 1), 2),
        (WarpgroupTile(128, 32, 2, 1, 1, 2), 2),
    ],
    ids=["", "rounds", "high", "pairs", "beside", "fours", "turns", "three turns", "one and a half", "half"],
)
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warpgroups with a tile whose ring is shorter than sums, and in some cases so few blocks that each takes several
    tiles."""
    tile, cores = request.param
    monkeypatch.setattr(solvers, "SOLVERS", tuple(s for s in solvers.SOLVERS if s.name == "warpgroup"))
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (tile, 1))
    if cores:
        monkeypatch.setattr(wgmma, "multiprocessors", lambda: cores)


def agree(program: Program, inputs: dict[str, np.ndarray], type: Type, on: Engine) -> GpuProgram:
    made = compiled(program, on, fast_math=True, float32_matmul_precision="medium")
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("warpgroup" in label for label in labels), labels
    (got,) = made.run(inputs)
    (wanted,) = (r.astype(np.float64) for r in reference(program, inputs).results)
    error = np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    assert error <= ALLOWED[type], error
    return made


def product(
    type: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, transposed: bool, shared: bool = False
) -> tuple[Program, dict[str, np.ndarray]]:
    """relu(a b + bias + residual); ``shared``: all matrices of the batch are multiplied by one."""
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    own = () if shared else batch
    lens = {"a": (*batch, rows, depth), "b": (*own, depth, columns) if transposed else (*own, columns, depth)}
    lens |= {"bias": (columns,), "residual": (*batch, rows, columns)}
    p = {name: m.add_parameter(name, Shape(type, n)) for name, n in lens.items()}
    right = p["b"]
    if not transposed:
        order = (*range(len(own)), len(own) + 1, len(own))
        right = m.add_instruction("transpose", [right], permutation=order)
    if shared and batch:
        right = m.add_instruction("multibroadcast", [right], out_lens=(*batch, depth, columns))
    sums = m.add_instruction("dot", [p["a"], right])
    wide = m.add_instruction("multibroadcast", [p["bias"]], out_lens=(*batch, rows, columns))
    sums = m.add_instruction("add", [m.add_instruction("add", [sums, wide]), p["residual"]])
    m.add_return([m.add_instruction("relu", [sums])])
    return program, {name: rng.standard_normal(n).astype(type.numpy) for name, n in lens.items()}


@pytest.mark.parametrize(
    ("type", "batch", "rows", "columns", "depth", "transposed", "shared"),
    [
        (F16, (), 70, 72, 136, False, False),
        (F16, (), 70, 136, 200, True, False),
        (BF16, (), 5, 24, 8, False, False),
        (F16, (2, 2), 33, 40, 72, True, False),
        (F16, (3,), 130, 8, 64, False, True),
        (BF16, (2,), 64, 64, 128, True, True),
        (F32, (), 40, 72, 100, False, False),
        (F16, (), 70, 40, 48, False, False),
        (BF16, (2,), 20, 64, 16, True, False),
        (F32, (2,), 40, 72, 100, True, False),
        (F32, (3,), 33, 36, 68, True, True),
    ],
)
def test_products(
    type: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, transposed: bool, shared: bool,
    forced: None, on: Engine,
) -> None:  # fmt: skip
    program, inputs = product(type, batch, rows, columns, depth, transposed, shared)
    made = agree(program, inputs, type, on)
    assert made.executable is not None
    steps = 1 + (
        type is F32 and transposed
    )  # what follows is computed by the same kernel; no instruction turns float32
    assert len(made.executable.plan.steps) == steps


def test_sums_in_parts(monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), 3))
    program, inputs = product(F16, (), 20, 40, 456, False)
    made = agree(program, inputs, F16, on)
    assert made.executable is not None
    assert [step.label for step in made.executable.plan.steps][1] == "gpu::add_parts_add_add_relu_kernel"


@pytest.mark.parametrize(
    ("batch", "lens", "channels", "out", "kernel", "stride", "pad", "group", "dilation"),
    [
        (2, (7, 5), 64, 40, 3, 1, 1, 1, 1),
        (1, (9, 8), 40, 72, 3, 2, 1, 1, 1),
        (2, (5, 5), 128, 24, 1, 1, 0, 1, 1),
        (2, (6, 9), 72, 16, 1, 2, 0, 1, 1),
        (2, (7, 5), 16, 24, 1, 1, 0, 1, 1),
        (1, (9, 8), 24, 72, 1, 1, 0, 1, 1),
        (1, (5, 4), 128, 48, 2, 1, 1, 2, 2),
        (2, (7, 5), 96, 32, 3, 1, 1, 2, 1),
        (1, (6, 7), 120, 24, 3, 2, 1, 3, 1),
        (2, (5, 5), 144, 48, 3, 1, 1, 2, 1),
        (3, (12,), 64, 8, 5, 2, 2, 1, 1),
        (3, (2, 2), 64, 16, 2, 1, 0, 1, 1),
    ],
)
def test_convolutions(
    batch: int, lens: tuple[int, ...], channels: int, out: int, kernel: int, stride: int, pad: int, group: int,
    dilation: int, forced: None, on: Engine,
) -> None:  # fmt: skip
    program, rng, axes = Program(), np.random.default_rng(channels), len(lens)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (batch, *lens, channels)))
    x = m.add_instruction("transpose", [x], permutation=(0, axes + 1, *range(1, axes + 1)))
    weights = rng.standard_normal((out, channels // group, *[kernel] * axes)).astype(np.float16)
    y = m.add_instruction(
        "convolution", [x, m.add_literal(weights)], padding=(pad,) * axes, stride=(stride,) * axes,
        dilation=(dilation,) * axes, group=group,
    )  # fmt: skip
    m.add_return([m.add_instruction("relu", [y])])
    inputs = {"x": rng.standard_normal((batch, *lens, channels)).astype(np.float16)}
    agree(program, inputs, F16, on)


def test_infinities_stay_in_their_group_without_fast_math(on: Engine) -> None:
    """A slice of 64 channels of a group of 48 would reach into the next group, and 0 times infinity is NaN."""
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (1, 5, 5, 96)))
    turned = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    weights = m.add_literal(rng.random((32, 48, 3, 3)).astype(np.float16) + np.float16(1))
    m.add_return([m.add_instruction("convolution", [turned, weights], group=2)])
    given = {"x": rng.random((1, 5, 5, 96)).astype(np.float16)}
    given["x"][0, 2, 2, 50] = np.inf
    (got,) = compiled(program, on, fast_math=False).run(given)
    assert np.isfinite(got[:, :16]).all() and np.isposinf(got[:, 16:]).any()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_beside_the_only_slice_of_a_volume_is_no_row_of_images(stride: int, on: Engine) -> None:
    """Such positions were rows below the image, where the copy engine ends the launch (CUDA_ERROR_ILLEGAL_INSTRUCTION);
    with a stride of 3 the only position is in the padding."""
    program, rng = Program(), np.random.default_rng(stride)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (2, 1, 3, 9, 64)))
    weights = m.add_literal(rng.standard_normal((24, 64, 1, 2, 3)).astype(np.float16))
    y = m.add_instruction(
        "convolution", [m.add_instruction("transpose", [x], permutation=(0, 4, 1, 2, 3)), weights],
        padding=(1, 1, 2, 1, 1, 0), stride=(stride, 1, 1), dilation=(1, 1, 1), group=1,
    )  # fmt: skip
    m.add_return([y])
    inputs = {"x": rng.standard_normal((2, 1, 3, 9, 64)).astype(np.float16)}
    (got,), (wanted,) = compiled(program, on, fast_math=True).run(inputs), reference(program, inputs).results
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=5e-3, atol=5e-2)


def test_float32_images_as_one_product_in_tf32(on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(1)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (2, 5, 6, 36)))
    weights = rng.standard_normal((24, 36, 3, 3)).astype(np.float32)
    image = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    m.add_return([m.add_instruction("convolution", [image, m.add_literal(weights)], padding=(1, 1))])
    agree(program, {"x": rng.standard_normal((2, 5, 6, 36)).astype(np.float32)}, F32, on)


def test_infinities_and_nan_stay_in_their_rows(forced: None, on: Engine) -> None:
    program, inputs = product(F16, (), 70, 72, 72, False)
    inputs["a"][3, 5], inputs["a"][66, 0] = np.nan, np.inf
    (got,) = compiled(program, on).run(inputs)
    strange = ~np.isfinite(got).all(axis=1)
    assert np.isnan(got[3]).all() and set(np.flatnonzero(strange)) <= {3, 66}


@pytest.mark.parametrize(
    ("line", "replaced", "said"),
    [
        ("mbarrier_wait(offset(full, slot), phase)", "pass", "no box has come"),
        ("mbarrier_wait(offset(empty, slot), 1 - phase)", "pass", "another box is on the way"),
        ("sums = wgmma_wait(sums, 0)", "pass", "reads sums that products may still be adding to"),
        ("sums = wgmma_wait(sums, 1)", "pass", "may still be reading"),
        ("mbarrier_expect(arrived, 6144)", "mbarrier_expect(arrived, 3072)", "0 are still expected"),
        (
            "mbarrier_expect(arrived, 6144)",
            "mbarrier_expect(arrived, 32768)",
            "never meet: 128 threads .* mbarrier_wait",
        ),
    ],
)
def test_what_the_interpreter_says_of_wrong_synchronisation(
    line: str, replaced: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), 1))
    written = wgmma.gpu_kernel

    def wrong(name: str, lines: list[str], *rest: int, **options: int) -> KernelSource:
        assert any(text.strip() == line for text in lines)
        return written(name, [text.replace(line, replaced) for text in lines], *rest, **options)

    monkeypatch.setattr(wgmma, "gpu_kernel", wrong)
    program, inputs = product(F16, (), 20, 24, 400, False)
    with pytest.raises(KernelFault, match=said):
        compiled(program, interpreter()).run(inputs)


@pytest.mark.parametrize("tile", wgmma_tiles.TILES, ids=str)
def test_tiles_fit_a_multiprocessor(tile: WarpgroupTile) -> None:
    # 228 KiB, of which each block takes one for the driver, one for alignment, and its barriers
    assert tile.blocks * (tile.shared_bytes + 2048 + 256) <= 228 << 10
    assert tile.shared_bytes + 1024 + 256 <= ARCHITECTURES["sm_90a"].shared_bytes
    transposed = tile.transposed()
    assert transposed.stages >= 3 and transposed.transposed_bytes <= tile.shared_bytes
    assert (transposed == tile) == (tile.columns % 64 == 0)


def test_the_instructions_are_those_of_warpgroups() -> None:
    program, _ = product(F16, (), 64, 64, 64, True)
    (kernel,) = compiled(program, interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    for wanted in (
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier",
        "mbarrier.try_wait.parity",
        "st.global.v4",
    ):
        assert wanted in text, wanted
    assert ".local" not in text


def test_chosen_tiles_use_a_large_device() -> None:
    choose = lambda *lens, **more: wgmma_tiles.weighed_tiles(TileQuestion(*lens, **more), 132)[0][1:]  # noqa: E731
    tile, splits = choose(4096, 4096, 64, 1)
    assert tile.rows * tile.columns >= 128 * 128 and splits == 1
    tile, splits = choose(32 * 14 * 14, 256, 36, 1, taps=9)
    assert tile.rows * tile.columns == 64 * 256 and splits == 1
    tile, splits = choose(1, 768, 48, 1)
    assert tile.rows == 64 and splits > 1


@pytest.mark.parametrize("transposed", [False, True])
def test_most_multiprocessors_have_a_tile_of_bert(transposed: bool) -> None:
    """3072 by 768 sums: 128 tiles of 192 by 96; with 128 or 192 columns there would be 96 or two rounds."""
    for slices in (12, 48):
        ((_, tile, splits), *_) = wgmma_tiles.weighed_tiles(
            TileQuestion(3072, 768, slices, 1, transposed=transposed), 132
        )
        assert (tile.rows, tile.columns, splits) == (192, 96, 1)


def test_blocks_that_ask_for_constants_early_need_no_pairs() -> None:
    """A convolution of 32 images of 7 by 7 pixels with 512 channels."""
    question = TileQuestion(32 * 7 * 7, 512, 72, 1, taps=9, constant=True)
    ((_, tile, splits), *_) = wgmma_tiles.weighed_tiles(question, 132)
    assert (tile.rows, tile.columns, tile.cluster * tile.across, splits) == (64, 128, 1, 1)


def test_columns_side_by_side_come_in_whole_boxes_to_blocks_below_one_another() -> None:
    for columns in (96, 768, 1000):
        for _, tile, _ in wgmma_tiles.weighed_tiles(TileQuestion(3000, columns, 12, 1, transposed=True), 132):
            assert tile.cluster == 1 or tile.columns // tile.cluster % 64 == 0
            assert tile.pingpong == 1


def test_what_an_epilogue_reads_counts_where_sums_are_short() -> None:
    """The last convolution of ResNet-50's first blocks, from 64 to 256 channels, for 32 images."""
    alone, _ = wgmma_tiles.chosen_tile(TileQuestion(32 * 56 * 56, 256, 1, 1))
    beside, _ = wgmma_tiles.chosen_tile(TileQuestion(32 * 56 * 56, 256, 1, 1, reads=True))
    assert alone.reads_at_once < beside.reads_at_once == wgmma_tiles.AHEAD
    for tile in wgmma_tiles.TILES:  # what fits: sums, the vectors and what else a thread holds
        assert tile.spare_registers > 0 and tile.reads_at_once in (1, 2, wgmma_tiles.AT_ONCE, wgmma_tiles.AHEAD)


def test_turns_are_taken_where_tiles_are_many_and_nothing_else_is_read() -> None:
    question = TileQuestion(3072, 3072, 12, 1, activates=True)
    found = wgmma_tiles.weighed_tiles(question, 132)
    assert next(cycles for cycles, tile, _ in found if tile.pingpong == 2) < 1.05 * found[0][0]
    for other in (replace(question, reads=True), replace(question, slices=11), replace(question, rows=2048)):
        assert all(tile.pingpong == 1 for _, tile, _ in wgmma_tiles.weighed_tiles(other, 132))


def test_each_set_that_takes_tiles_in_turns_asks_for_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four adjacent tiles, two per block."""
    asked: set[int] = set()

    def names(who: Lanes) -> dict[str, Any]:
        return {**memory_names(who), "prefetch_l2": who.each(lambda number, place, index: asked.add(int(index)))}

    monkeypatch.setattr(interpreter_run, "memory_names", names)
    monkeypatch.setattr(solvers, "SOLVERS", tuple(s for s in solvers.SOLVERS if s.name == "warpgroup"))
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 3, 1, pingpong=2), 1))
    monkeypatch.setattr(wgmma, "multiprocessors", lambda: 2)
    program, inputs = product(F16, (), 8, 256, 16, False)
    agree(program, inputs, F16, interpreter())
    assert asked >= {0, 64, 128, 192}


@pytest.mark.parametrize(
    ("columns", "types", "turns"), [(128, F16, 8), (160, BF16, 8), (96, F32, 4), (100, F16, 0), (64, Type.int8_type, 4)]
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_columns_of_constants_lie_in_turns(
    columns: int, types: Type, turns: int, batch: tuple[int, ...], on: Engine
) -> None:
    """Each thread's sums are then neighbours, so that nothing is exchanged."""
    program, rng = Program(), np.random.default_rng(columns)
    m: Module = program.main
    integer = types is Type.int8_type
    lens = ((*batch, 70, 128), (*batch, 128, columns))
    values = [rng.integers(-9, 10, n).astype(types.numpy) for n in lens]
    x = m.add_parameter("x", Shape(types, lens[0]))
    sums = m.add_instruction("quant_dot" if integer else "dot", [x, m.add_literal(values[1])])
    m.add_return([m.add_instruction("relu", [sums])])
    made = compiled(program, on, fast_math=True, float32_matmul_precision="medium")
    text = made.kernels()[0].text
    assert ("sums_in_turns" in text and "row_of_turns" not in text) == bool(turns)
    assert not turns or f", {turns})" in text.split("sums_in_turns")[1].split("\n")[0]
    (got,), (wanted,) = made.run({"x": values[0]}), reference(program, {"x": values[0]}).results
    if integer:
        np.testing.assert_array_equal(got, wanted)
    else:
        assert np.abs(got.astype(np.float64) - wanted).max() <= ALLOWED[types] * np.abs(wanted.astype(np.float64)).max()


def test_the_order_of_columns_in_turns() -> None:
    """Thread q stores 4 successive columns from 4 q on; its accumulators hold columns 2 q, 2 q + 1, 8 + 2 q and 9 + 2
    q."""
    order = permuted_lanes(np.arange(32)[:, None], 0, 4).reshape(2, 16)
    for q in range(4):
        own = [2 * q, 2 * q + 1, 8 + 2 * q, 8 + 2 * q + 1]
        assert order[0, own].tolist() == list(range(4 * q, 4 * q + 4))
    assert np.array_equal(order[1], order[0] + 16)


@pytest.mark.parametrize(
    ("type", "columns", "transposed", "after"),
    [
        (F16, 136, True, ""),
        (BF16, 72, False, "relu"),
        (F16, 76, False, ""),
        (F16, 70, False, "relu"),
        (F32, 72, False, ""),
    ],
)
def test_what_threads_made_of_their_sums_is_exchanged(
    type: Type, columns: int, transposed: bool, after: str, forced: None, on: Engine
) -> None:
    """Where right operands are no constants, and nothing is read for each column, sums are rounded before neighbours
    meet."""
    program, rng = Program(), np.random.default_rng(columns)
    lens = {"a": (70, 128), "b": (128, columns) if transposed else (columns, 128)}
    a, b = (program.main.add_parameter(name, Shape(type, n)) for name, n in lens.items())
    if not transposed:
        b = program.main.add_instruction("transpose", [b], permutation=(1, 0))
    sums = program.main.add_instruction("dot", [a, b])
    program.main.add_return([program.main.add_instruction(after, [sums]) if after else sums])
    inputs = {name: rng.standard_normal(n).astype(type.numpy) for name, n in lens.items()}
    made = agree(program, inputs, type, on)
    assert any("row_of_turns" in kernel.text for kernel in made.kernels()) == (type is not F32 and columns % 4 == 0)
    inputs["a"][3, 5], inputs["a"][69, 0] = np.inf, np.nan
    (got,) = made.run(inputs)
    (wanted,) = reference(program, inputs).results
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


@pytest.mark.parametrize(
    ("count", "padded"), [(232, 256), (100, 104), (115, 128), (48, 48), (13, 16), (128, 128), (1208, 1216)]
)
def test_copies_have_rows_of_whole_lines_if_that_takes_little(count: int, padded: int) -> None:
    assert line_padded(count, 2) == padded


def test_constants_have_rows_of_whole_lines(on: Engine) -> None:
    """20928 by 1592 by 232 took 66 us: TMA loads rows that begin within lines at less than a third of its rate."""
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (70, 232)))
    weights = m.add_literal(rng.standard_normal((232, 24)).astype(np.float16))
    m.add_return([m.add_instruction("dot", [x, weights])])
    made = agree(program, {"x": rng.standard_normal((70, 232)).astype(np.float16)}, F16, on)
    assert made.executable is not None
    assert (24, 256) in [array.shape for array in made.executable.plan.constants]


def test_taps_of_constant_weights_begin_at_lines(on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (1, 6, 5, 104)))
    weights = m.add_literal(rng.standard_normal((24, 104, 3, 3)).astype(np.float16))
    turned = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    m.add_return([m.add_instruction("convolution", [turned, weights], padding=(1, 1))])
    made = agree(program, {"x": rng.standard_normal((1, 6, 5, 104)).astype(np.float16)}, F16, on)
    assert made.executable is not None
    assert (1, 24, 9, 128) in [array.shape for array in made.executable.plan.constants]


def test_rows_within_lines_are_shared_by_clusters() -> None:
    """3456 by 10680 by 1208 took 231 us with tiles of 128 by 160, and 147 where two blocks share what they load."""
    question = TileQuestion(3456, 10680, 19, 1, left_alignment=16, right_alignment=16)
    tile, _ = wgmma_tiles.chosen_tile(question)
    assert tile.cluster * tile.across > 1


def test_narrow_results_are_not_added_up_of_parts() -> None:
    """30336 by 181 by 2768 took 187 us with sums in two parts, and 76 without."""
    question = TileQuestion(30336, 181, 44, 1, constant=True, left_alignment=32, width=1)
    assert wgmma_tiles.chosen_tile(question)[1] == 1


@pytest.mark.parametrize("transposed", [False, True])
def test_columns_behind_the_last_one_are_not_loaded(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """13237 by 56 by 704 took 8.6 us: TMA loads columns outside a matrix slowly."""
    tile = WarpgroupTile(64, 64, 2, 1)
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (tile, 1))
    program, inputs = product(F16, (), 70, 56, 136, transposed)
    made = agree(program, inputs, F16, interpreter())
    assert made.executable is not None
    (step,) = made.executable.plan.steps
    boxes = [own.layout.box for own in step.args if isinstance(own, MappedTensor)]
    assert boxes == [(64, 64, 1, 1), (56, 64, 1, 1) if transposed else (64, 56, 1, 1)]


def test_images_are_copied_into_pixels_of_whole_lines(monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    """8 images of 64 x 64 x 152 to 64 channels by 3 x 3 took 37 us, and 22 with the copy."""
    monkeypatch.setattr(wgmma_tiles, "PIXEL_RATES", {16: (0.1, 38.0)})
    wgmma_tiles._weighed.cache_clear()
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (2, 5, 4, 88)))
    weights = m.add_literal(rng.standard_normal((24, 88, 3, 3)).astype(np.float16))
    turned = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    m.add_return([m.add_instruction("convolution", [turned, weights], padding=(1, 1))])
    made = agree(program, {"x": rng.standard_normal((2, 5, 4, 88)).astype(np.float16)}, F16, on)
    wgmma_tiles._weighed.cache_clear()
    assert made.executable is not None
    assert made.executable.plan.steps[0].label == "gpu::filled_channels_kernel"
