"""Updates of caches, and attention to their valid rows, on the CPU and on the interpreter of GPUs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.api.program import program
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op

from ..interpreter.engine import interpreted

TYPES = {
    "float32": Type.float_type, "float16": Type.half_type, "int8": Type.int8_type, "bfloat16": Type.bf16_type,
}  # fmt: skip
SHAPES = {
    "grouped token": (1, 4, 2, 1, 40, 16, 16),
    "ragged tokens of odd features": (3, 4, 4, 1, 7, 5, 9),
    "few queries": (2, 8, 2, 5, 33, 24, 24),
    "many queries": (2, 2, 1, 70, 100, 32, 32),
    "keys in parts": (1, 4, 1, 1, 1000, 64, 64),
    "many heads of one key": (2, 24, 2, 1, 300, 16, 24),
    "one key": (2, 3, 3, 2, 1, 8, 8),
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 6},
    "softcap": {"softcap": 3.0},
    "sink": {"sink": True},
    "bidirectional": {"causal": False},
    "all": {"sink": True, "window": 3, "softcap": 2.0},
}


def attention(
    lens: tuple[int, ...], kind: str, seed: int, page: int = 0, **options: Any
) -> tuple[program, dict[str, np.ndarray]]:
    """Return a program of attention to a cache, in blocks of ``page`` rows, and inputs whose invalid rows are NaN."""
    b, h, shared, s, t, d, e = lens
    rng = np.random.default_rng(seed)
    lengths = {"q": (b, h, s, d), "k": (b, shared, t, d), "v": (b, shared, t, e)}
    dtypes = {"q": "float32", "k": kind, "v": kind}
    feeds: dict[str, np.ndarray] = {}
    for name, shape in lengths.items():
        if dtypes[name] == "int8":
            feeds[name] = rng.integers(-128, 128, shape).astype(np.int8)
        else:
            dtype = ml_dtypes.bfloat16 if dtypes[name] == "bfloat16" else dtypes[name]
            feeds[name] = rng.standard_normal(shape).astype(dtype)
    start = rng.integers(0, max(1, t - s) + 1, b)
    stop = np.minimum(start + s, t)
    stop[-1] = rng.integers(0, t + 1)
    for row in range(b if kind != "int8" else 0):
        feeds["k"][row, :, stop[row] :] = feeds["v"][row, :, stop[row] :] = np.nan
    feeds["limits"] = np.stack([start, stop], 1).astype(np.int64)
    feeds = in_blocks(feeds, page, seed) if page else feeds
    made = Program()
    inputs = [made.main.add_parameter(n, Shape(TYPES[dtypes[n]], feeds[n].shape)) for n in lengths]
    whole = ("limits", "table") if page else ("limits",)
    inputs += [made.main.add_parameter(n, Shape(Type.int64_type, feeds[n].shape)) for n in whole]
    if options.get("sink"):
        inputs.append(made.main.add_parameter("sink", Shape(Type.float_type, (h,))))
        feeds["sink"] = rng.standard_normal(h).astype(np.float32)
    scale = 0.002 if kind == "int8" else 0.2
    made.main.add_return(
        [made.main.add_instruction(make_op("cached_attention", scale=scale, paged=page > 0, **options), inputs)]
    )
    return program.wrap(made), feeds


def in_blocks(feeds: dict[str, np.ndarray], page: int, seed: int) -> dict[str, np.ndarray]:
    """Return feeds with keys and values in shuffled blocks, of which the first is zeros and the last unused.

    A page of each batch is missing, and its table entry -1.
    """
    batch, _, rows, _ = feeds["k"].shape
    pages = -(-rows // page)
    rng = np.random.default_rng(seed)
    table = 1 + rng.permutation(batch * pages).reshape(batch, pages)
    made = {**feeds, "table": table.astype(np.int64)}
    for name in "kv":
        spread = ((0, 0), (0, 0), (0, pages * page - rows), (0, 0))
        x = np.pad(feeds[name], spread).reshape(batch, -1, pages, page, feeds[name].shape[3])
        made[name] = np.zeros((batch * pages + 2, x.shape[1], page, x.shape[4]), x.dtype)
        made[name][table] = x.transpose(0, 2, 1, 3, 4)
        made[name][-1] = 100
    if pages > 2:
        made["table"][np.arange(batch), rng.integers(0, pages, batch)] = -1
    return made


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("form", ["plain", "all"])
@pytest.mark.parametrize("lens", SHAPES)
def test_attention_to_blocks_reads_valid_rows_alone(lens: str, form: str, kind: str) -> None:
    own, feeds = attention(SHAPES[lens], kind, 3, page=6, **FORMS[form])
    wanted = np.asarray(own.clone().compile("ref").run(feeds)[0])
    found = np.asarray(own.compile("cpu", fast_math=False).run(feeds)[0])
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lens", SHAPES)
def test_attention_reads_valid_rows_alone(lens: str, form: str) -> None:
    # how a type is loaded does not depend on the form: one with all of a score's steps and the plain one have each
    for seed, kind in enumerate(TYPES if form in ("plain", "all") else ["float32"]):
        own, feeds = attention(SHAPES[lens], kind, seed, **FORMS[form])
        wanted = np.asarray(own.clone().compile("ref").run(feeds)[0])
        found = np.asarray(own.compile("cpu", fast_math=False).run(feeds)[0])
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max()), err_msg=kind)
        assert not own.rewrite_log().refusals("lower_cached_attention"), "attention ran on the host"


@pytest.mark.parametrize("form", ["window", "all"])
def test_attention_to_a_cache_is_written_out_for_a_gpu(form: str) -> None:
    own, feeds = attention((2, 4, 2, 3, 20, 16, 16), "float16", 0, **FORMS[form])
    wanted = np.asarray(own.clone().compile("ref").run(feeds)[0])
    with interpreted():
        found = np.asarray(own.compile("gpu", fast_math=False).run(feeds)[0])
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("lens", "rows", "length"),
    [
        ((2, 3, 8, 4), 1, -1),
        ((1, 2, 5, 16), 3, 9),
        ((2, 2, 0, 4), 3, 6),
        ((1, 1, 9, 3), 2, 4),
        ((3, 1, 70, 128), 1, 70),
        ((2, 2, 6, 8), 20, -1),
    ],
)
def test_rows_outside_of_a_cache_are_skipped(target: str, lens: tuple[int, ...], rows: int, length: int) -> None:
    rng = np.random.default_rng(0)
    whole = lens[2] if length < 0 else length
    for type_ in TYPES.values():
        made = Program()
        shapes = {"cache": lens, "rows": (*lens[:2], rows, lens[3])}
        inputs = [made.main.add_parameter(name, Shape(type_, shape)) for name, shape in shapes.items()]
        inputs.append(made.main.add_parameter("at", Shape(Type.int64_type, (lens[0], rows))))
        made.main.add_return([made.main.add_instruction(make_op("update_cache", length=length), inputs)])
        feeds = {name: rng.integers(-9, 9, shape).astype(type_.numpy) for name, shape in shapes.items()}
        feeds["at"] = rng.integers(-2, whole + 2, (lens[0], rows))
        wanted = np.zeros((*lens[:2], whole, lens[3]), type_.numpy)
        kept = min(whole, lens[2])
        wanted[:, :, :kept] = feeds["cache"][:, :, :kept]
        for batch, row in np.ndindex(*feeds["at"].shape):
            if 0 <= feeds["at"][batch, row] < whole:
                wanted[batch, :, feeds["at"][batch, row]] = feeds["rows"][batch, :, row]
        with interpreted():
            found = program.wrap(made).compile(target).run(feeds)[0]
        np.testing.assert_array_equal(found, wanted)


def test_caches_that_do_not_fit_are_named() -> None:
    f, i = (lambda *lens, t=t: Shape(t, lens) for t in (Type.float_type, Type.int64_type))
    update, attend = make_op("update_cache"), make_op("cached_attention")
    for op, shapes, words in (
        (update, [f(1, 2, 3, 4), f(1, 2, 1, 5), i(1, 1)], "axis 3 of cache and rows"),
        (update, [f(1, 2, 3, 4), f(1, 2, 1, 4), i(1, 2)], "axis 1 of positions"),
        (update, [f(1, 2, 3, 4), f(1, 2, 1, 4), f(1, 1)], "positions must be int64"),
        (attend, [f(1, 3, 1, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), i(1, 2)], "2 key heads do not divide 3"),
        (attend, [f(1, 2, 1, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), i(1, 3)], "limits must be int64"),
        (attend, [f(1, 2, 1, 4), i(1, 2, 5, 4), i(1, 2, 5, 4), i(1, 2)], "caches one of"),
    ):
        with pytest.raises(ShapeError, match=words):
            op.compute_shape(shapes)
