"""Sizes that a run computes, such as those of a resized image: compiled stages take them as lengths, also inside of
loops and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import mgx_numba as migraphx
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.dynamic import DynamicProgram
from mgx_numba.targets.split_point import size_array

PASTED = """<ir_version: 8, opset_import: ["": 18]>
pasted (float[n,1,7,7] masks, int64[n,4] boxes) => (float[k,24,20] y) {
  e = Constant<value = float[0,24,20] {}>() t = Constant<value = bool {1}>() z = Constant<value = int64 {0}>()
  sh = Shape(masks) n = Gather(sh, z)
  y = Loop(n, t, e) <body = b (int64 i, bool c, float[a,24,20] st) => (bool co, float[aa,24,20] so) {
    co = Identity(c)
    i0 = Constant<value = int64 {0}>() i1 = Constant<value = int64 {1}>() v0 = Constant<value = int64[1] {0}>()
    v1 = Constant<value = int64[1] {1}>() H = Constant<value = int64 {24}>() W = Constant<value = int64 {20}>()
    m0 = Gather<axis=0>(masks, i) b0 = Gather<axis=0>(boxes, i) x0, y0, x1, y1 = Split<num_outputs=4>(b0)
    w_ = Sub(x1, x0) w1 = Add(w_, i1) wm = Max(w1, i1) h_ = Sub(y1, y0) h1 = Add(h_, i1) hm = Max(h1, i1)
    m4 = Unsqueeze(m0, v0) sz = Concat<axis=0>(v1, v1, hm, wm)
    r = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(m4, , , sz)
    r3 = Squeeze(r, v0) r2 = Squeeze(r3, v0)
    xs = Max(x0, i0) xe0 = Add(x1, i1) xe = Min(xe0, W) ys = Max(y0, i0) ye0 = Add(y1, i1) ye = Min(ye0, H)
    sy = Sub(ys, y0) ey = Sub(ye, y0) sx = Sub(xs, x0) ex = Sub(xe, x0)
    c1 = Slice(r2, sy, ey, v0) c2 = Slice(c1, sx, ex, v1)
    csh = Shape(c2) cw = Gather(csh, v1)
    top = Concat<axis=0>(ys, cw) tz = ConstantOfShape(top)
    below = Sub(H, ye) bo = Concat<axis=0>(below, cw) bz = ConstantOfShape(bo) cc = Concat<axis=0>(tz, c2, bz)
    hsh = Shape(cc) ch = Gather(hsh, v0) le = Concat<axis=0>(ch, xs) lz = ConstantOfShape(le)
    right = Sub(W, xe) rr = Concat<axis=0>(ch, right) rz = ConstantOfShape(rr)
    full = Concat<axis=1>(lz, cc, rz) f3 = Unsqueeze(full, v0) so = Concat<axis=0>(st, f3) }>
}"""
"""A loop that resizes masks and pastes them into images, as torchvision's exporter writes it."""

STEPS = {
    "slice": "p = Slice(x, a, b, v0)",
    "resize": "one = Concat<axis=0>(b, b) q = Unsqueeze(x, v01) sz = Concat<axis=0>(v1, v1, one)"
    ' r = Resize<mode="nearest">(q, , , sz) p = Squeeze(r, v01)',
    "pad": "u = Abs(a) w = Concat<axis=0>(u, b, b, u) p = Pad(x, w)",
    "crop": "m = Neg(v1) w = Concat<axis=0>(m, b, v0, m) p = Pad(x, w)",
    "tile": "w = Concat<axis=0>(b, v1) p = Tile(x, w)",
    "expand": "w = Concat<axis=0>(b, v1, v1) p = Expand(x, w)",
    "constant": "w = Concat<axis=0>(b, b) p = ConstantOfShape(w)",
    "range": "s = Squeeze(a, v0) e = Squeeze(b, v0) d = Constant<value = int64 {1}>() p0 = Range(s, e, d)"
    " p = Cast<to=1>(p0)",
    "nonzero": "g = Greater(x, zf) p0 = NonZero(g) p = Cast<to=1>(p0)",
    "suppression": "bx0 = Reshape(x, rs) bx = Abs(bx0) sc0 = ReduceSum(bx, two) sc = Transpose<perm=[0,2,1]>(sc0)"
    " p0 = NonMaxSuppression(bx, sc, b) p = Cast<to=1>(p0)",
}
"""Results p of data x [6, 4] and of int64 vectors a and b of one element, by the operator with computed sizes."""
CONSTANTS = """v0 = Constant<value = int64[1] {0}>() v1 = Constant<value = int64[1] {1}>()
  v01 = Constant<value = int64[2] {0,1}>() zf = Constant<value = float {0.0}>()
  rs = Constant<value = int64[3] {1,6,4}>() two = Constant<value = int64[1] {2}>()"""
LIGHT = "q0 = Relu(p) q1 = Neg(q0) q2 = Sigmoid(q1) q3 = Add(q2, p) r0 = ReduceSum<keepdims=0>(q3)"
"""Several operators on p, so that a second stage is worthwhile, and their sum."""


def looped(step: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": 18]>
    looped (float[6,4] x, int64[t,2] bounds) => (float s, float[k] rows) {{
      {CONSTANTS} sh = Shape(bounds) i0 = Constant<value = int64 {{0}}>() n = Gather(sh, i0)
      yes = Constant<value = bool {{1}}>()
      s, rows = Loop(n, yes, zf) <body = b (int64 i, bool c, float st) => (bool co, float so, float row) {{
        co = Identity(c) own = Gather<axis=0>(bounds, i) a, b = Split<num_outputs=2>(own)
        {step} {LIGHT} so = Add(st, r0) row = Identity(r0) }}>
    }}"""


def branched(step: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": 18]>
    branched (float[6,4] x, int64[1] a, int64[1] b) => (float y) {{
      {CONSTANTS} big = Greater(b, v1) flag = Squeeze(big, v0)
      y = If(flag) <then_branch = one () => (float p1) {{ {step} {LIGHT} p1 = Identity(r0) }},
        else_branch = other () => (float p2) {{ p2 = ReduceSum<keepdims=0>(x) }}>
    }}"""


RESULTS = {
    "topk": ("int64[1] k", "float[r,c] y, int64[r,c] z", "y, z = TopK(x, k)"),
    "split": ("int64[2] k", "float[a,b] y, float[c,d] z", "y, z = Split<axis=1>(x, k)"),
    "onehot": (
        "int64 k, float[2] v",
        "float[6,7,c] y",
        "i = Cast<to=7>(x) y = OneHot(i, k, v)",
    ),
    "slice": ("int64[2] k, int64[2] l", "float[a,b] y", "y = Slice(x, k, l)"),
    "affine grid": ("float[2,2,3] t, int64[4] k", "float[a,b,c,d] y", "y = AffineGrid(t, k)"),
    "unpooling": (
        "float[1,1,2,2] s, int64[1,1,2,2] i, int64[4] k",
        "float[a,b,c,d] y",
        "y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(s, i, k)",
    ),
    "pad": ("int64[4] k, float v", "float[a,b] y", "y = Pad(x, k, v)"),
}
"""Further inputs, results and text of nodes on data x [6, 7], whose sizes are the input k."""


UNFOLLOWED = {
    "interpolation": (
        "float[1,3,h,w] v, float[n,8] x",
        "float[1,3,a,c] y",
        """sh = Shape<start=2>(v) f = Cast<to=1>(sh) k = Constant<value = float {1.7}>() m = Mul(f, k) fl = Floor(m)
        t = Cast<to=7>(fl) b = Constant<value = int64[2] {1,3}>() sz = Concat<axis=0>(b, t)
        y = Resize<mode="linear">(v, , , sz)""",
        [{"v": (1, 3, h, w), "x": (1, 8)} for h, w in ((4, 5), (3, 3), (1, 1), (8, 13), (2, 9))],
    ),
    "share": (
        "float[n,8] x, float[8,8] w",
        "float[k,8] y",
        """sh = Shape<start=0, end=1>(x) f = Cast<to=1>(sh) k = Constant<value = float {0.35}>() m = Mul(f, k)
        c = Ceil(m) t = Cast<to=7>(c) p = Slice(x, v0, t, v0) y = MatMul(p, w)""",
        [{"x": (n, 8), "w": (8, 8)} for n in (4, 5, 1, 0, 20, 33)],
    ),
    "sum of ones": (
        "float[b,s] x, float[1,t,8] w",
        "float[b,k,8] y",
        """sh = Shape(x) one = ConstantOfShape<value = int64[1] {1}>(sh) n = ReduceSum<keepdims=0>(one, v1)
        k = ReduceMax<keepdims=1>(n) e = Slice(w, v0, k, v1) v2 = Constant<value = int64[1] {2}>()
        u = Unsqueeze(x, v2) y = Add(e, u)""",
        [{"x": (b, s), "w": (1, 20, 8)} for b, s in ((2, 5), (1, 7), (3, 1), (2, 20))],
    ),
    "square": (
        "float[b,n,8] x",
        "float[b,8,k,k] y",
        """sh = Shape(x) bb = Gather(sh, v0) n = Gather(sh, v1) f = Cast<to=1>(n) r = Sqrt(f) t = Cast<to=7>(r)
        e = Constant<value = int64[1] {8}>() z = Concat<axis=0>(bb, e, t, t) tr = Transpose<perm=[0,2,1]>(x)
        y = Reshape(tr, z)""",
        [{"x": (b, n * n, 8)} for b, n in ((1, 2), (2, 3), (1, 1), (3, 7))],
    ),
}
"""Inputs, results and text of nodes whose lengths follow from others in a way that no expression has, and lengths of
runs."""


def compiled(text: str) -> tuple[Any, Any]:
    """Return a model compiled for the CPU, and ONNX Runtime's session of it."""
    model = parser.parse_model(text).SerializeToString()
    program = migraphx.parse_onnx_buffer(model)
    program.compile(migraphx.get_target("cpu"), num_threads=1, plan_cache=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return program, onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def expect_equal(program: Any, session: Any, feeds: dict[str, np.ndarray]) -> None:
    for found, wanted in zip(program.run(feeds), session.run(None, feeds), strict=True):
        assert np.asarray(found).shape == wanted.shape
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)


def bodies(program: Any) -> list[DynamicProgram]:
    """Return the compiled bodies of all fallback steps that run submodules."""
    plans = [part.executable.plan for part in program.compiled._all() if part.executable is not None]
    calls = [step.function for plan in plans for step in plan.steps if isinstance(step, FallbackStep)]
    return [body._compiled for call in calls for body in (call.bodies or {}).values()]


def boxes(random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    first = random.integers(-5, 12, (count, 2))
    last = first + random.integers(7, 20, (count, 2))
    masks = random.random((count, 1, 7, 7), np.float32)
    return {"masks": masks, "boxes": np.concatenate([first, last], 1).astype(np.int64)}


def test_a_loop_pastes_masks_of_any_size_with_few_plans() -> None:
    program, session = compiled(PASTED)
    random = np.random.default_rng(0)
    for count in (3, 1, 0, 20, 5, 20):
        expect_equal(program, session, boxes(random, count))
    (body,) = bodies(program)
    assert body.by_sizes and not body.fixed_plans and 1 <= len(body.symbolic_plans) <= 3
    assert all(part.executable is None or not part.fallback_reasons() for part in body._all()[1:])


@pytest.mark.parametrize("kind", STEPS)
def test_sizes_inside_of_a_loop(kind: str) -> None:
    program, session = compiled(looped(STEPS[kind]))
    bounds = [[0, 3], [1, 4], [2, 5], [0, 1], [2, 2], [1, 6], [3, 5]]
    for count in (3, 7, 1, 0, 5):
        feeds = {"x": np.random.default_rng(count).standard_normal((6, 4)).astype(np.float32)}
        expect_equal(program, session, {**feeds, "bounds": np.array(bounds[:count], np.int64).reshape(-1, 2)})


@pytest.mark.parametrize("kind", STEPS)
def test_sizes_inside_of_a_branch(kind: str) -> None:
    program, session = compiled(branched(STEPS[kind]))
    for a, b in ((0, 3), (1, 2), (0, 1), (2, 5), (-4, 3), (0, 3), (-1, 2), (0, 0)):
        feeds = {"x": np.random.default_rng(b).standard_normal((6, 4)).astype(np.float32)}
        expect_equal(program, session, {**feeds, "a": np.array([a], np.int64), "b": np.array([b], np.int64)})


@pytest.mark.parametrize("kind", RESULTS)
def test_kernels_compute_what_has_sizes_that_are_inputs(kind: str) -> None:
    inputs, results, text = RESULTS[kind]
    program, session = compiled(f"""<ir_version: 10, opset_import: ["": 21]>
    sized (float[6,7] x, {inputs}) => ({results}) {{ {text} }}""")
    random = np.random.default_rng(0)
    x = np.round(3 * random.standard_normal((6, 7))).astype(np.float32)
    x[1, :4] = np.nan, np.inf, -np.inf, -0.0
    sizes = {
        "topk": [[3], [1], [7], [0], [5]],
        "split": [[3, 4], [1, 6], [7, 0], [0, 7]],
        "onehot": [5, 1, 9],
        "slice": [[0, 2], [1, 0], [3, 5], [2, 2]],
        "affine grid": [[2, 1, 3, 4], [2, 2, 1, 1], [2, 3, 9, 5]],
        "unpooling": [[1, 1, 4, 4], [1, 1, 5, 4], [1, 1, 7, 9]],
        "pad": [[0, 1, 2, 3], [1, 0, 0, 2], [2, 2, 2, 2]],
    }
    given = {
        "v": np.array([0.5, 2], np.float32) if kind == "onehot" else np.array(-1.5, np.float32),
        "l": np.array([6, 5]),
        "t": random.standard_normal((2, 2, 3)).astype(np.float32),
        "s": random.standard_normal((1, 1, 2, 2)).astype(np.float32),
        "i": np.array([0, 3, 9, 14]).reshape(1, 1, 2, 2),
    }
    if kind == "onehot":
        x = np.nan_to_num(x, posinf=2, neginf=-1)
    names = {i.name for i in session.get_inputs()}
    for k in sizes[kind]:
        feeds = {"x": x, "k": np.array(k), **given}
        expect_equal(program, session, {name: feeds[name] for name in names})
    parts = [part for part in program.compiled._all() if part.executable is not None]
    assert not any(isinstance(step, FallbackStep) for part in parts for step in part.executable.plan.steps)
    assert not program.compiled.fixed_plans


def test_rows_of_a_slice_of_any_bounds_are_copied_by_vectors() -> None:
    """The typical length of each row was 0, so that lanes ran along columns."""
    program, session = compiled("""<ir_version: 10, opset_import: ["": 21]>
    sliced (float[6,70] x, int64[2] k, int64[2] l) => (float[a,b] y) { y = Slice(x, k, l) }""")
    x = np.arange(420, dtype=np.float32).reshape(6, 70)
    expect_equal(program, session, {"x": x, "k": np.array([1, 3]), "l": np.array([5, 60])})
    assert not any("load_strided" in kernel.text for kernel in program.compiled.kernels())


def test_sizes_below_zero_have_plans_of_their_own() -> None:
    program, session = compiled(looped(STEPS["slice"]))
    bounds = [[-5, -1], [0, 3], [-4, 6], [1, -1], [-6, -2], [0, 5], [-3, 4]]
    for count in (7, 4, 7):
        x = np.random.default_rng(count).standard_normal((6, 4)).astype(np.float32)
        expect_equal(program, session, {"x": x, "bounds": np.array(bounds[:count], np.int64)})
    (body,) = bodies(program)
    assert body.by_sizes and len(body.symbolic_plans) <= 6


GROWING = """<ir_version: 8, opset_import: ["": 18]>
growing (float[m,3] none, int64[n] counts, float last)
    => (float[k,3] rows, float[p,3] more, float sum, float[q,3] both) {
  t = Constant<value = bool {1}>() z = Constant<value = int64 {0}>() sh = Shape(counts) n = Gather(sh, z)
  s0 = Constant<value = float {0.0}>()
  rows, more, sum, both = Loop(n, t, none, none, s0, none)
    <body = b (int64 i, bool c, float[e,3] r, float[f,3] m, float s, float[g,3] h)
      => (bool co, float[ee,3] ro, float[ff,3] mo, float so, float[gg,3] ho) {
    one = Constant<value = int64[1] {1}>() three = Constant<value = int64[1] {3}>() v = Constant<value = int64[1] {0}>()
    own = Gather(counts, i) ou = Unsqueeze(own, v) w = Concat<axis=0>(ou, three) f0 = Cast<to=1>(own)
    row0 = Expand(f0, w) row1 = Add(row0, s) row = Relu(row1) ro = Concat<axis=0>(r, row)
    mo = Concat<axis=0>(row, m) so0 = ReduceSum<keepdims=0>(row) so = Add(so0, s)
    ho = Concat<axis=0>(h, row) co = Less(so, last) }>
}"""
"""A loop that ends by its condition; rows are appended to two values, which may be of any number, and put before a
third."""


def test_a_loop_appends_rows_of_any_number_until_its_condition_ends_it() -> None:
    program, session = compiled(GROWING)
    for counts, last in (
        ([2, 1, 0, 3], 1e9),
        ([1, 1, 1, 1, 1], 20),
        ([0], 5),
        ([], 5),
        ([4, 0, 2], 1),
        ([1] * 30, 1e9),
    ):
        feeds = {
            "none": np.ones((len(counts) % 3, 3), np.float32),
            "counts": np.array(counts, np.int64),
            "last": np.array(last, np.float32),
        }
        expect_equal(program, session, feeds)
    plans = [part.executable.plan for part in program.compiled._all() if part.executable is not None]
    calls = [step.function for plan in plans for step in plan.steps if isinstance(step, FallbackStep)]
    assert [body._appended for call in calls for body in (call.bodies or {}).values()] == [{0: 0, 3: 0}]


@pytest.mark.parametrize(("size", "lens"), [(0, (1, 0, 0)), (3, (4, 0, 0)), (-2, (1, 2, 0))])
def test_an_array_without_elements_holds_a_size(size: int, lens: tuple[int, ...]) -> None:
    assert size_array(np.array([size])).shape == lens


SLICED = """<ir_version: 8, opset_import: ["": 18]>
sliced (float[4,5,6] x, int64[3] starts, int64[3] ends, int64[3] steps) => (float[k,l,m] y) {
  axes = Constant<value = int64[3] {0,1,2}>() y = Slice(x, starts, ends, axes, steps)
}"""
LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [
        ([0, 1, -2], [MOST] * 3, [1, 1, 1]),
        ([LEAST, LEAST, 2], [MOST, 3, MOST], [1, 2, 1]),
        ([MOST, -1, MOST], [LEAST] * 3, [-1, -2, -1]),
        ([0, 1, MOST], [MOST, 1 << 40, LEAST], [1 << 40, 1 << 62, -(1 << 62)]),
        ([1 << 33] * 3, [1 << 34] * 3, [1, 1, 1]),
    ],
)
def test_computed_sizes_are_as_large_as_int64(starts: list[int], ends: list[int], steps: list[int]) -> None:
    """The largest end was a length that NumPy refused: "Maximum allowed dimension exceeded"."""
    program, session = compiled(SLICED)
    given = {"starts": starts, "ends": ends, "steps": steps}
    feeds = {"x": np.arange(120, dtype=np.float32).reshape(4, 5, 6), **{k: np.array(v) for k, v in given.items()}}
    expect_equal(program, session, feeds)


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_lengths_that_no_expression_has_share_a_plan(name: str) -> None:
    """Each set of lengths had a plan of its own: 3 to 9 ms for a model of ten nodes."""
    inputs, results, nodes, lens = UNFOLLOWED[name]
    model = f"""<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => ({results}) {{
      v0 = Constant<value = int64[1] {{0}}>() v1 = Constant<value = int64[1] {{1}}>() {nodes} }}"""
    program, session = compiled(model)
    rng = np.random.default_rng(0)
    for own in (*lens, *lens):
        given = {i.name: rng.standard_normal(own[i.name]).astype(np.float32) for i in session.get_inputs()}
        expect_equal(program, session, given)
    assert isinstance(program.compiled, DynamicProgram)
    assert not program.compiled.fixed_plans and len(program.compiled.symbolic_plans) == 1


def merged(with_past: bool) -> str:
    keys, made = ("all", "all = Concat<axis=1>(past, k)") if with_past else ("own", "own = Identity(k)")
    y = "with_y" if with_past else "y_alone"
    return f"""q = MatMul(x, w) k = MatMul(q, w) {made} kt = Transpose<perm=[0,2,1]>({keys})
      scores = MatMul(q, kt) p = Softmax(scores) {y} = MatMul(p, {keys})"""


MERGED = f"""<ir_version: 8, opset_import: ["": 18]>
g (float[b,s,4] x, float[b,p,4] past, bool[1] use, float[4,4] w) => (float[b,s,4] y, float[b,t,4] present) {{
  y, present = If(use) <
    then_branch = with () => (float[b,s,4] with_y, float[b,u,4] all) {{ {merged(True)} }},
    else_branch = without () => (float[b,s,4] y_alone, float[b,s,4] own) {{ {merged(False)} }}>
}}"""
"""A decoder whose branches with and without a past are one model, as optimum merges them."""


def test_an_if_of_branches_with_other_lengths_has_a_plan_for_each() -> None:
    """It was a fallback step, 200 us in each run. Both plans are made when the program is compiled."""
    program, session = compiled(MERGED)
    assert isinstance(program.compiled, DynamicProgram)
    made = [id(plan) for plan in program.compiled.symbolic_plans]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 4)).astype(np.float32)
    past = np.zeros((1, 2, 4), np.float32)
    for number in range(12):
        prompt = number % 6 == 0
        x = rng.standard_normal((1, 3 if prompt else 1, 4)).astype(np.float32)
        past = past[:, :2] if prompt else past
        feeds = {"x": x, "past": past, "use": np.array([not prompt]), "w": w}
        expect_equal(program, session, feeds)
        past = np.array(program.run(feeds)[1])
    assert sorted(made) == sorted(map(id, program.compiled.symbolic_plans)) and len(made) == 2
    assert not program.compiled.fixed_plans
    steps = [step for one in program.compiled.symbolic_plans for plan in one.own_plans() for step in plan.steps]
    assert not any(isinstance(step, FallbackStep) for step in steps)


def test_an_if_behind_a_product_runs_that_product_once() -> None:
    """Plans for each branch would run the first stage again where the branch changes."""
    program, session = compiled("""<ir_version: 8, opset_import: ["": 18]>
    g (float[b,s] x, float[s,s] w, bool use) => (float[b,t] y) {
      h = MatMul(x, w)
      y = If(use) <then_branch = t () => (float[b,s] a) { a = Relu(h) },
        else_branch = e () => (float[b,u] d) { d = Concat<axis=1>(h, h) }>
    }""")
    rng = np.random.default_rng(0)
    for number, (b, s) in enumerate(((2, 3), (1, 4), (2, 1), (0, 3))):
        x, w = (rng.standard_normal(n).astype(np.float32) for n in ((b, s), (s, s)))
        expect_equal(program, session, {"x": x, "w": w, "use": np.array(number % 2 > 0)})
    assert len(program.compiled.symbolic_plans) == 1
