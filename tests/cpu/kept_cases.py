"""Programs of each kind that a plan file must represent, with inputs of several lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..dynamic.models import single_shot, two_stages
from ..values import normal

__all__ = ["CASES", "Feeds", "KeptCase"]

Feeds = dict[str, np.ndarray]


@dataclass
class KeptCase:
    """A model and what it is run on; ``fixed`` are lengths of inputs that are not left open."""

    model: onnx.ModelProto
    feeds: list[Feeds]
    fixed: dict[str, list[int]] = field(default_factory=dict)


def _model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def _rows(*counts: int, width: int = 8) -> list[np.ndarray]:
    return [normal(n, width, seed=n) for n in counts]


def branches() -> KeptCase:
    """Products of open lengths in the branches of an If."""
    model = _model(
        """g (bool go, float[N, 8] x) => (float[N, M] y) {
            y = If (go) <then_branch = a () => (float[N, M] p) { q = MatMul (x, w) p = Relu (q) },
                         else_branch = b () => (float[N, M] r) { s = Add (x, x) r = MatMul (s, v) }>
        }""",
        w=normal(8, 8, seed=1), v=normal(8, 8, seed=2),
    )  # fmt: skip
    return KeptCase(model, [{"go": np.array(n % 2 == 0), "x": x} for n in range(2) for x in _rows(5, 1, 17)])


def loop() -> KeptCase:
    """A state that a Loop carries, and a row of each iteration."""
    model = _model(
        """g (int64 trips, bool go, float[N, 8] x) => (float[N, 8] last, float[T, N, 8] rows) {
            last, rows = Loop (trips, go, x) <body = b (int64 i, bool c, float[N, 8] s) =>
                (bool d, float[N, 8] t, float[N, 8] u) {
                    d = Identity (c) m = MatMul (s, w) t = Tanh (m) u = Add (t, x) }>
        }""",
        w=normal(8, 8, seed=3),
    )  # fmt: skip
    trips = [np.array(k, np.int64) for k in (3, 0, 1)]
    return KeptCase(model, [{"trips": t, "go": np.array(True), "x": x} for t in trips for x in _rows(4, 1, 9)])


def growing_loop() -> KeptCase:
    """A carried value that grows: its body has no plan."""
    model = _model(
        """g (int64 trips, float[N, 8] x) => (float[M, 8] last) {
            last = Loop (trips, , x) <body = b (int64 i, bool c, float[M, 8] s) => (bool d, float[L, 8] t) {
                d = Identity (c) t = Concat <axis = 0> (s, w) }>
        }""",
        w=normal(2, 8, seed=4),
    )  # fmt: skip
    return KeptCase(model, [{"trips": np.array(k, np.int64), "x": x} for k in (0, 2) for x in _rows(3, 1)])


def scan() -> KeptCase:
    """A Scan over rows, which is a loop."""
    model = _model(
        """g (float[N, 8] x) => (float[8] total, float[N, 8] rows) {
            total, rows = Scan <num_scan_inputs = 1, body = b (float[8] s, float[8] r) => (float[8] t, float[8] o)
                { t = Add (s, r) o = Tanh (t) }> (z, x)
        }""",
        z=np.zeros(8, np.float32),
    )  # fmt: skip
    return KeptCase(model, [{"x": x} for x in _rows(6, 1, 0, 11)])


def late_branch() -> KeptCase:
    """A product in a branch whose lengths depend on data."""
    model = _model(
        """g (bool go, float[N, 8] x) => (float[K, 8] y) {
            y = If (go) <then_branch = a () => (float[K, 8] p) {
                    f = ReduceMax <keepdims = 0> (x, axis) o = Greater (f, zero) n = NonZero (o) k = Squeeze (n, first)
                    c = Gather (x, k) p = MatMul (c, w) },
                else_branch = b () => (float[N, 8] r) { r = Identity (x) }>
        }""",
        w=normal(8, 8, seed=5), zero=np.array(1.2, np.float32), axis=np.array([1]), first=np.array([0]),
    )  # fmt: skip
    return KeptCase(model, [{"go": np.array(n % 2 == 0), "x": x} for n in range(2) for x in _rows(7, 1, 13)])


def nonzero() -> KeptCase:
    """Return a model whose result's length depends on values."""
    model = _model("g (float[N, 8] x) => (int64[2, K] y) { p = Relu (x) y = NonZero (p) }")
    return KeptCase(model, [{"x": x} for x in _rows(6, 1, 0, 20)])


def strings() -> KeptCase:
    """Strings that are joined, compared and given back."""
    model = _model(
        """g (string[N] x) => (string[N] y, bool[N] z) { y = StringConcat (x, s) z = Equal (x, s) }""",
        s=np.array(["größe"], object),
    )
    words = ["größe", "", "a b", "漢字"]
    return KeptCase(model, [{"x": np.array(words[:n], object)} for n in (4, 1, 3)])


def packed() -> KeptCase:
    """Weights of a convolution that a fallback step packs, since they are an input."""
    model = _model("g (float[1, 8, 6, 6] x, float[16, 8, 3, 3] w) => (float[1, 16, 4, 4] y) { y = Conv (x, w) }")
    return KeptCase(model, [{"x": normal(1, 8, 6, 6, seed=k), "w": normal(16, 8, 3, 3, seed=k + 9)} for k in range(2)])


def sequence() -> KeptCase:
    """Parts of a tensor in a sequence."""
    model = _model(
        """g (float[N, 8] x) => (float[M, 8] y) { s = SplitToSequence <axis = 0> (x, two) t = SequenceInsert (s, x)
           y = ConcatFromSequence <axis = 0> (t) }""",
        two=np.array(2, np.int64),
    )
    return KeptCase(model, [{"x": x} for x in _rows(6, 1, 7)])


def _exported(make: Callable[[], Any]) -> Callable[[], KeptCase]:
    def made() -> KeptCase:
        case = make()
        rng = np.random.default_rng(3)
        return KeptCase(case.model, [case.draw(rng) for _ in range(3)])

    return made


CASES: dict[str, Callable[[], KeptCase]] = {
    "branches": branches,
    "loop": loop,
    "growing_loop": growing_loop,
    "scan": scan,
    "late_branch": late_branch,
    "nonzero": nonzero,
    "strings": strings,
    "packed": packed,
    "sequence": sequence,
    "single_shot": _exported(single_shot),
    "two_stages": _exported(two_stages),
}
