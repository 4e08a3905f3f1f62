"""Accuracy of `quantize_int8`: equalised channels, corrected means, layers kept for a budget; calibrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.api.sensitivity import parse_accuracy, relative_error
from mgx_numba.errors import FormatError, OptionError
from mgx_numba.graph.calibration import Calibration, ChannelStatistics

from ..values import normal

REF = mgx_numba.get_target("ref")
RNG = np.random.default_rng(5)
UNEQUAL = np.geomspace(0.01, 30, 16).astype(np.float32)
"""Sizes of channels that one scale cannot serve."""


def network(dims: Any = None) -> mgx_numba.program:
    """Channels of very unequal sizes, from a product that a ReLU follows, into a product; float32."""
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(1)
    shape = mgx_numba.shape(type="float", lens=[4, 24]) if dims is None else dims
    x = main.add_parameter("x", shape)
    first = rng.standard_normal((24, 16)).astype(np.float32) * UNEQUAL
    second = rng.standard_normal((16, 8)).astype(np.float32) / UNEQUAL[:, None]
    value = main.add_instruction(mgx_numba.op("dot"), [x, main.add_literal(first)])
    value = main.add_instruction(mgx_numba.op("relu"), [value])
    value = main.add_instruction(mgx_numba.op("dot"), [value, main.add_literal(second)])
    main.add_return([value])
    return p


def depthwise() -> mgx_numba.program:
    """A 1x1 convolution to channels of unequal sizes, a depthwise one and a grouped one over them."""
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(2)
    value = main.add_parameter("x", mgx_numba.shape(type="float", lens=[1, 8, 7, 6]))
    for lens, group, scale in (
        ((16, 8, 1, 1), 1, UNEQUAL[:, None, None, None]),
        ((16, 1, 3, 3), 16, 1 / UNEQUAL[:, None, None, None]),
        ((12, 4, 3, 3), 4, 1),
    ):
        weights = main.add_literal((rng.standard_normal(lens) * scale).astype(np.float32))
        conv = mgx_numba.op("convolution", group=group, padding=[lens[2] // 2] * 2)
        value = main.add_instruction(conv, [value, weights])
        value = main.add_instruction(mgx_numba.op("relu"), [value])
    main.add_return([value])
    return p


def batches(p: mgx_numba.program, count: int = 3, seed: int = 0, lens: Any = None) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lens = lens or p.get_parameter_shapes()["x"].lens()
    return [{"x": rng.standard_normal(lens).astype(np.float32)} for _ in range(count)]


def lost(p: mgx_numba.program, exact: mgx_numba.program, inputs: list[dict[str, np.ndarray]], target: str) -> float:
    a, b = (q.clone().compile(target) for q in (p, exact))
    return float(np.mean([relative_error([np.asarray(a.run(i)[0])], [np.asarray(b.run(i)[0])]) for i in inputs]))


@pytest.mark.parametrize("build", [network, depthwise])
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_channels_of_unequal_sizes_are_made_alike(build: Any, target: str) -> None:
    exact = build()
    p = mgx_numba.quantize_int8(build(), REF, batches(exact, 8))
    factors = [c.plan.factors is not None for c in p.quantization_choices()]
    assert factors[1] and "channels equalised" in str(p.quantization_choices()[1])
    assert lost(p, exact, batches(exact, 4, seed=9), target) < 0.06


def test_without_equalisation_small_channels_are_lost() -> None:
    from mgx_numba.core.types import Type
    from mgx_numba.graph.passes import run_passes
    from mgx_numba.graph.passes.quantization_plan import calibrated_values, make_calibration, make_plans
    from mgx_numba.graph.passes.quantize_8bits import Quantize8Bits
    from mgx_numba.graph.passes.selection import Selection
    from mgx_numba.targets.registry import compile_for

    exact, given = network(), batches(network(), 8)
    found = {}
    for equalize in (True, False):
        program, selection = network().portable, Selection(["dot"])
        calibration = make_calibration(program, selection, "minmax")
        watched = program.clone()
        watched.main.replace_return(calibrated_values(watched, selection))
        for one in given:
            calibration.observe([np.asarray(v) for v in compile_for("ref", watched).run(one)])
        plans = make_plans(program, selection, calibration, Type.uint8_type, equalize)
        run_passes(program, [Quantize8Bits(plans, selection), "dead_code_elimination"])
        found[equalize] = lost(mgx_numba.program.wrap(program), exact, batches(exact, 4, seed=9), "ref")
    assert found[True] < 0.3 * found[False]


def test_means_of_results_are_corrected() -> None:
    """Weights that all are rounded in one direction move the mean of what they sum."""
    p = mgx_numba.program()
    main = p.get_main_module()
    weights = np.full((32, 2), 1.4 / 127, np.float32)
    weights[0] = 1
    product = [main.add_parameter("x", mgx_numba.shape(type="float", lens=[64, 32])), main.add_literal(weights)]
    main.add_return([main.add_instruction(mgx_numba.op("dot"), product)])
    given = [{"x": RNG.uniform(1, 2, (64, 32)).astype(np.float32)} for _ in range(2)]
    expected = given[0]["x"] @ weights
    found = np.asarray(mgx_numba.quantize_int8(p, REF, given).compile("ref").run(given[0])[0])
    rounded = given[0]["x"] @ (np.rint(weights * 127) / 127).astype(np.float32)
    assert abs((rounded - expected).mean()) > 0.1
    assert abs((found - expected).mean()) < 0.01


@pytest.mark.parametrize("columns", [8, 5])
def test_means_of_channels_are_not_those_of_columns(columns: int) -> None:
    """A convolution and a product read the same value."""
    p = mgx_numba.program()
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[2, 8, 6, columns]))
    weights = np.full((columns, 3), 1.4 / 127, np.float32)
    weights[0] = 1
    kernels = np.zeros((4, 8, 1, 1), np.float32)
    kernels[0] = 1
    spread = mgx_numba.op("multibroadcast", out_lens=[2, 8, columns, 3])
    dot = main.add_instruction(mgx_numba.op("dot"), [x, main.add_instruction(spread, [main.add_literal(weights)])])
    main.add_return([dot, main.add_instruction(mgx_numba.op("convolution"), [x, main.add_literal(kernels)])])
    given = {"x": RNG.uniform(1, 2, (2, 8, 6, columns)).astype(np.float32)}
    exact = p.clone().compile("ref").run(given)
    found = mgx_numba.quantize_int8(p, REF, [given]).clone().compile("ref").run(given)
    assert "= add" not in str(p)  # kernels are exact
    assert max(relative_error([np.asarray(a)], [np.asarray(b)]) for a, b in zip(found, exact)) < 0.05


def transposed(weights: np.ndarray, bias: Any = None, signed: bool = False, **attributes: Any) -> mgx_numba.program:
    """A ReLU, unless values are to be of both signs, then a transposed convolution, perhaps with a bias."""
    p = mgx_numba.program()
    main = p.get_main_module()
    value = main.add_parameter("x", mgx_numba.shape(type="float", lens=[2, len(weights), 5, 6]))
    if not signed:
        value = main.add_instruction(mgx_numba.op("relu"), [value])
    op = mgx_numba.op("convolution_backwards", **attributes)
    value = main.add_instruction(op, [value, main.add_literal(weights.astype(np.float32))])
    if bias is not None:
        literal = main.add_literal(np.asarray(bias, np.float32))
        lens = [2, len(bias), 5 * attributes["stride"][0], 6 * attributes["stride"][1]]
        spread = main.add_instruction(mgx_numba.op("broadcast", axis=1, out_lens=lens), [literal])
        value = main.add_instruction(mgx_numba.op("add"), [value, spread])
    main.add_return([value])
    return p


@pytest.mark.parametrize("kernel, padding", [((2, 2), (0, 0)), ((4, 4), (1, 1))])
def test_transposed_convolutions(kernel: tuple[int, int], padding: tuple[int, int]) -> None:
    """Channels of unequal sizes are made alike; the bias takes what is corrected."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((16, 7, *kernel)) / UNEQUAL[:, None, None, None]
    attributes = {"stride": [2, 2], "padding": list(padding)}
    exact = transposed(weights, np.arange(7), **attributes)
    given = batches(exact, 4)
    for one in given:
        one["x"] *= UNEQUAL[:, None, None]
    p = mgx_numba.quantize_int8(exact.clone(), mgx_numba.get_target("cpu"), given)
    (choice,) = p.quantization_choices()
    assert choice.choice == "int8" and choice.plan.factors is not None and 0 < choice.error < 0.03
    assert str(p).count("= add") == 1
    assert lost(p, exact, given, "ref") < 0.02 and lost(p, exact, given, "cpu") < 0.02
    p.compile("cpu")
    assert any("conv" in k.name and "div" not in k.name for k in p.kernels() if "convert" in k.name)


@pytest.mark.parametrize("stride", [1, 2])
def test_means_of_transposed_convolutions_are_corrected(stride: int) -> None:
    weights = np.full((32, 2, 2, 2), 1.4 / 127, np.float32)
    weights[0] = 1
    exact = transposed(weights, stride=[stride, stride])
    given = [{"x": RNG.uniform(1, 2, (2, 32, 5, 6)).astype(np.float32)}]
    p = mgx_numba.quantize_int8(exact.clone(), mgx_numba.get_target("cpu"), given)
    found, expected = (np.asarray(q.compile("cpu").run(given[0])[0])[:, :, 1:5, 1:6] for q in (p, exact))
    assert abs((found - expected).mean()) < 0.01 * abs(expected.mean())


def test_transposed_convolutions_that_stay() -> None:
    weights, cpu = RNG.standard_normal((8, 4, 2, 2)), mgx_numba.get_target("cpu")
    for program, quantize, target, reason in (
        (transposed(weights, signed=True), mgx_numba.quantize_int8, cpu, "its input has a zero point"),
        (transposed(weights), mgx_numba.quantize_int8, REF, "the target has no kernel"),
        (transposed(weights), mgx_numba.quantize_fp8, cpu, "the target has no kernel"),
        (transposed(weights, group=2), mgx_numba.quantize_int8, cpu, "in groups"),
    ):
        p = quantize(program, target, batches(program))
        (choice,) = p.quantization_choices()
        assert reason in choice.choice and "quantizelinear" not in str(p)


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy", "mse"])
def test_calibrations_are_merged_and_kept_in_the_file(observer: str, tmp_path: Path) -> None:
    exact = network()
    text, given = str(exact), batches(exact, 4)
    parts = [mgx_numba.calibrate(exact, REF, some, observer=observer) for some in (given[:1], given[1:])]
    assert str(exact) == text
    parts[1].merge(parts[0])
    assert parts[1].batches == 4
    merged = mgx_numba.quantize_int8(network(), REF, parts[1])
    whole = mgx_numba.quantize_int8(network(), REF, given, observer=observer)
    assert lost(merged, whole, given, "ref") < 2e-3
    assert str(mgx_numba.quantize_int8(network(), REF, given, observer=observer)) == str(whole)
    for format in ("msgpack", "json"):
        mgx_numba.save(whole, tmp_path / "p.mxr", format=format)
        kept = mgx_numba.load(tmp_path / "p.mxr", format=format).calibration()
        assert kept is not None and kept.to_json() == whole.calibration().to_json()
        assert str(mgx_numba.quantize_int8(network(), REF, kept)) == str(whole)
    assert exact.calibration() is None
    compiled = mgx_numba.quantize_int8(network().compile("cpu"), REF, given, observer=observer)
    mgx_numba.save(compiled, tmp_path / "c.mxr")
    for _ in range(2):  # the second time from the plan that is kept
        kept = mgx_numba.load(tmp_path / "c.mxr").calibration()
        assert kept is not None and kept.batches == 4
    clone = compiled.clone()
    assert clone.calibration() is compiled.calibration() and clone.quantization_choices()


def test_calibrations_of_other_programs_are_refused() -> None:
    one, other = (mgx_numba.calibrate(p, REF, batches(p)) for p in (network(), depthwise()))
    with pytest.raises(OptionError, match="value 0 where the other calibration has 'convolution"):
        one.merge(other)
    with pytest.raises(OptionError, match="value 0 where the program has"):
        mgx_numba.quantize_int8(network(), REF, other)
    with pytest.raises(OptionError, match="cannot be merged into one by minmax"):
        one.merge(mgx_numba.calibrate(network(), REF, batches(network()), observer="mse"))
    with pytest.raises(OptionError, match="made of batches"):
        mgx_numba.calibrate(network(), REF, one)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="3 channels cannot be merged into 2"):
        seen = ChannelStatistics()
        for n in (2, 3):
            seen.observe(np.ones((4, n)), 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("values"),
        lambda tree: tree.update(values=[{"label": "a"}]),
        lambda tree: tree["values"][0].update(observer="best"),
        lambda tree: tree["values"][0].update(counts="AAAA"),
        lambda tree: tree["values"][0]["channels"].update(low="!"),
        lambda tree: tree["values"][0]["channels"].update(low=tree["values"][1]["channels"]["low"]),
    ],
)
def test_malformed_calibrations_are_refused(change: Any) -> None:
    tree = mgx_numba.calibrate(network(), REF, batches(network()), observer="mse").to_json()
    assert Calibration.from_json(tree).to_json() == tree
    change(tree)
    with pytest.raises(FormatError, match="calibration is malformed"):
        Calibration.from_json(tree)


def test_channels_leave_out_what_is_not_finite() -> None:
    seen = ChannelStatistics()
    values = np.array([[1, np.nan, -2], [np.inf, np.nan, 4]], np.float32)
    seen.observe(values, 1)
    assert seen.low.tolist() == [1, np.inf, -2] and seen.seen.tolist() == [1, 0, 2]
    assert seen.means.tolist() == [1, 0, 1] and seen.mean_squares.tolist() == [1, 0, 10]
    seen.observe(np.zeros((0, 3), np.float32), 1)
    assert seen.seen.tolist() == [1, 0, 2]


@pytest.mark.parametrize("rows, inner", [(3, 0), (0, 20)])
@pytest.mark.parametrize("accuracy", [None, "1%"])
def test_products_of_empty_values(rows: int, inner: int, accuracy: Any) -> None:
    p = mgx_numba.program()
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[rows, inner]))
    weights = main.add_literal(np.ones((inner, 5), np.float32))
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [x, weights])])
    given = {"x": np.zeros((rows, inner), np.float32)}
    mgx_numba.quantize_int8(p, mgx_numba.get_target("ref"), [given], accuracy=accuracy)
    for target in ("ref", "cpu"):
        found = np.asarray(p.clone().compile(target).run(given)[0])
        assert found.shape == (rows, 5) and not found.any()


def hard() -> mgx_numba.program:
    """Return three products; the second is inaccurate in 8 bits, since one value is a thousand times larger than the
    rest."""
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(3)
    value = main.add_parameter("x", mgx_numba.shape(type="float", lens=[32, 12]))
    for number in range(3):
        weights = rng.standard_normal((12, 12)).astype(np.float32) / 4
        if number == 1:
            cube = main.add_instruction(mgx_numba.op("mul"), [value, value])
            value = main.add_instruction(
                mgx_numba.op("mul"), [cube, main.add_instruction(mgx_numba.op("mul"), [cube, cube])]
            )
        value = main.add_instruction(mgx_numba.op("dot"), [value, main.add_literal(weights)])
        value = main.add_instruction(mgx_numba.op("tanh" if number == 1 else "relu"), [value])
    main.add_return([value])
    return p


def test_layers_that_lose_most_stay_as_they_are() -> None:
    exact, given = hard(), batches(hard(), 3)
    free = mgx_numba.quantize_int8(hard(), REF, given)
    before = lost(free, exact, given, "ref")
    p = mgx_numba.quantize_int8(hard(), REF, given, accuracy=before / 2)
    choices = p.quantization_choices()
    assert [c.choice for c in choices].count("int8") == 2 and "alone it loses" in choices[1].choice
    assert lost(p, exact, given, "ref") <= before / 2
    assert all(0 < c.error < 0.02 for c in choices)
    same = mgx_numba.quantize_int8(hard(), REF, given, accuracy=min(0.99, before * 1.01))
    assert [c.choice for c in same.quantization_choices()] == ["int8"] * 3
    none = mgx_numba.quantize_int8(hard(), REF, given, accuracy="0.0001%")
    assert not any(c.choice == "int8" for c in none.quantization_choices())


def test_a_loss_of_ones_own() -> None:
    asked = []

    def loss(found: Any, right: Any) -> float:
        asked.append(len(found))
        return 0.0

    p = mgx_numba.quantize_int8(hard(), REF, batches(hard()), accuracy="1%", loss=loss)
    assert asked == [1, 1, 1] and all(c.choice == "int8" for c in p.quantization_choices())


def test_wrong_accuracy() -> None:
    assert parse_accuracy("0.5%") == 0.005 and parse_accuracy(0.25) == 0.25
    for wrong in ("half", "0", 0, 2, "100%", True, -1):
        with pytest.raises(OptionError, match="expected a share"):
            parse_accuracy(wrong)
    with pytest.raises(OptionError, match="which a calibration does not hold"):
        known = mgx_numba.calibrate(network(), REF, batches(network()))
        mgx_numba.quantize_int8(network(), REF, known, accuracy=0.1)
    with pytest.warns(UserWarning, match="no calibration data"):
        mgx_numba.quantize_int8(network(), REF, (), accuracy=0.1)


def test_open_lengths() -> None:
    open_rows = mgx_numba.shape(
        type="float", dyn_dims=[mgx_numba.dynamic_dimension(1, 6), mgx_numba.dynamic_dimension(24, 24)]
    )
    given = batches(network(), 2) + batches(network(), 2, lens=[6, 24])
    exact = network(open_rows)
    p = mgx_numba.quantize_int8(network(open_rows), REF, given)
    assert [c.choice for c in p.quantization_choices()] == ["int8", "int8"]
    assert p.quantization_choices()[1].plan.factors is not None
    for target in ("ref", "cpu"):
        for rows in (1, 5):
            assert lost(p, exact, batches(exact, 2, lens=[rows, 24]), target) < 0.06


def test_a_program_that_is_compiled_again_keeps_its_calibration() -> None:
    p = mgx_numba.quantize_int8(network().compile("ref"), REF, batches(network()))
    known = p.calibration()
    mgx_numba.quantize_bf16(p)
    assert known is not None and p.calibration() is known
    plain = network().compile("ref")
    mgx_numba.quantize_bf16(plain)
    optional = network().compile("ref", use_int8=True, calibration=batches(network()))
    assert [c.choice for c in optional.quantization_choices()] == ["int8", "int8"]
    assert optional.calibration() is not None
    assert plain.calibration() is None and mgx_numba.save_buffer(plain)


def test_matrices_of_three_axes_with_open_lengths_are_quantised() -> None:
    """Their weights are spread over the open batch, which hid that they are constant: nothing was quantised."""
    p = mgx_numba.program()
    main = p.get_main_module()
    open_batch = [
        mgx_numba.dynamic_dimension(1, 6),
        mgx_numba.dynamic_dimension(1, 9),
        mgx_numba.dynamic_dimension(24, 24),
    ]
    x = main.add_parameter("x", mgx_numba.shape(type="float", dyn_dims=open_batch))
    w = main.add_literal(normal(24, 16))
    spread = [main.add_instruction(mgx_numba.op("broadcast_for_dot"), pair) for pair in ([x, w], [w, x])]
    main.add_return([main.add_instruction(mgx_numba.op("dot"), spread)])
    mgx_numba.quantize_int8(p, REF, [{"x": normal(5, 7, 24, seed=3)}])
    assert [c.choice for c in p.quantization_choices()] == ["int8"]
    p.compile(mgx_numba.get_target("cpu"))
    for lens in ((1, 1, 24), (5, 7, 24)):
        value = normal(*lens, seed=3)
        wanted = value @ normal(24, 16)
        assert np.abs(np.asarray(p.run({"x": value})[0]) - wanted).max() < 0.04 * np.abs(wanted).max()


def test_four_bits_are_for_matrices_that_are_spread_over_an_open_batch_too() -> None:
    p = mgx_numba.program()
    main = p.get_main_module()
    lens = [mgx_numba.dynamic_dimension(1, 6), mgx_numba.dynamic_dimension(1, 9), mgx_numba.dynamic_dimension(64, 64)]
    x = main.add_parameter("x", mgx_numba.shape(type="float", dyn_dims=lens))
    w = main.add_literal(normal(64, 16))
    spread = [main.add_instruction(mgx_numba.op("broadcast_for_dot"), pair) for pair in ([x, w], [w, x])]
    main.add_return([main.add_instruction(mgx_numba.op("dot"), spread)])
    mgx_numba.quantize_int4_weights(p)
    assert "unpack_int4" in str(p)
    p.compile(mgx_numba.get_target("cpu"))
    value = normal(5, 7, 64, seed=3)
    wanted = value @ normal(64, 16)
    assert np.linalg.norm(np.asarray(p.run({"x": value})[0]) - wanted) < 0.15 * np.linalg.norm(wanted)
