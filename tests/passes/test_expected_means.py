"""Mean values of products' operands, as far as a program determines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.graph.constants import is_constant
from mgx_numba.graph.passes.expected_means import expected_means

op = mgx_numba.op


class Net:
    """A main module that is built step by step, and what its last product takes."""

    def __init__(self, lens: list[int]) -> None:
        self.program = mgx_numba.program()
        self.main = self.program.get_main_module()
        self.rng = np.random.default_rng(1)
        self.lens = lens
        self.x = self.main.add_parameter("x", mgx_numba.shape(type="float", lens=lens))

    def weights(self, *lens: int, shift: float = 0.0) -> Any:
        scale = np.sqrt(2 / max(1, np.prod(lens[1:])))
        return self.main.add_literal((self.rng.standard_normal(lens) * scale + shift).astype(np.float32))

    def add(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        return self.main.add_instruction(op(name, **attributes), list(inputs))

    def bias(self, value: Any, channels: int, axis: int = 1) -> Any:
        number = self.main.add_literal(self.rng.standard_normal(channels).astype(np.float32))
        lens = list(value.shape().lens())
        return self.add("add", value, self.add("broadcast", number, axis=axis, out_lens=lens))

    def expected(self, value: Any) -> np.ndarray | None:
        """Return the expected mean of ``value`` as first operand of a product with constant weights."""
        lens = value.shape().lens()
        if len(lens) > 3:
            last = self.add("convolution", value, self.weights(4, lens[1], 1, 1))
        else:
            last = self.add("dot", value, self.weights(*lens[:-2], lens[-1], 4))
        self.main.add_return([last, value])
        main = self.program.portable.main
        product = main.results()[0]
        assert is_constant(product.inputs[1])
        return expected_means(main, [product]).get(product)

    def measured(self, axis: int) -> np.ndarray:
        """The means along all other axes of the value, for standard normal inputs."""
        value = np.asarray(
            self.program.compile("ref").run({"x": self.rng.standard_normal(self.lens).astype(np.float32)})[1]
        )
        return value.mean(tuple(k for k in range(value.ndim) if k != axis), dtype=np.float64)


def near(found: np.ndarray | None, right: np.ndarray, least: float = 0.99) -> bool:
    """Whether two vectors point the same way, and are of nearly the same length."""
    assert found is not None
    found = np.broadcast_to(found, right.shape).astype(np.float64)
    sizes = np.linalg.norm(found), np.linalg.norm(right)
    return bool(found @ right >= least * sizes[0] * sizes[1]) and 0.8 < sizes[0] / sizes[1] < 1.25


def conv(net: Net, value: Any, channels: int, group: int = 1, taps: int = 3) -> Any:
    given = value.shape().lens()[1]
    pad = [taps // 2] * 2
    value = net.add("convolution", value, net.weights(channels, given // group, taps, taps), group=group, padding=pad)
    return net.bias(value, channels)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("act", ["relu", "silu", "sigmoid", "tanh"])
def test_convolutions_and_activations(group: int, act: str) -> None:
    net = Net([2, 4, 21, 19])
    value = net.add(act, conv(net, net.x, 12, group))
    value = net.add(act, conv(net, value, 20, group))
    assert near(net.expected(value), net.measured(1))


@pytest.mark.parametrize("mode", ["max", "average"])
def test_pools_concatenations_and_sums(mode: str) -> None:
    net = Net([1, 3, 40, 40])
    value = net.add("relu", conv(net, net.x, 8))
    pool = net.add("pooling", value, mode=mode, lengths=[2, 2], stride=[1, 1], padding=[0, 0, 1, 1])
    both = net.add("concat", pool, value, axis=1)
    whole = net.add("relu", net.add("add", both, net.add("relu", conv(net, both, 16, taps=1))))
    assert near(net.expected(whole), net.measured(1))


def test_transposed_convolutions_and_shuffled_channels() -> None:
    net = Net([1, 6, 16, 16])
    value = net.add("relu", conv(net, net.x, 8))
    value = net.add("convolution_backwards", value, net.weights(8, 5, 2, 2), stride=[2, 2])
    value = net.add("relu", net.bias(value, 10 if value.shape().lens()[1] == 10 else 5))
    value = net.add("concat", value, value, axis=1)
    value = net.add("reshape", value, dims=[1, 2, 5, 32, 32])
    value = net.add("reshape", net.add("transpose", value, permutation=[0, 2, 1, 3, 4]), dims=[1, 10, 32, 32])
    assert near(net.expected(value), net.measured(1), 0.97)


def test_images_that_become_vectors() -> None:
    net = Net([64, 3, 6, 5])
    value = net.add("relu", conv(net, net.x, 8, taps=1))
    value = net.add("reshape", value, dims=[64, 8 * 6 * 5])
    assert near(net.expected(value), net.measured(1))


def test_norms_heads_and_means_over_tokens() -> None:
    net = Net([2, 300, 24])
    value = net.bias(net.add("dot", net.x, net.weights(2, 24, 32)), 32, 2)
    mean = net.add("multibroadcast", net.add("reduce_mean", value, axes=[2]), out_lens=[2, 300, 32])
    value = net.bias(net.add("sub", value, mean), 32, 2)
    heads = net.add("transpose", net.add("reshape", value, dims=[2, 300, 4, 8]), permutation=[0, 2, 1, 3])
    keys = net.add("transpose", heads, permutation=[0, 1, 3, 2])
    scores = net.add(
        "mul", net.add("dot", heads, keys), net.main.add_literal(np.full((2, 4, 300, 300), 0.01, np.float32))
    )
    value = net.add("dot", net.add("softmax", scores, axis=3), heads)
    value = net.add("reshape", net.add("transpose", value, permutation=[0, 2, 1, 3]), dims=[2, 300, 32])
    assert near(net.expected(value), net.measured(2), 0.95)


def test_values_without_a_mean_have_none() -> None:
    net = Net([4, 7])
    assert net.expected(net.x) is None


@pytest.mark.parametrize("name", ["unknown input", "no finite means"])
def test_what_cannot_be_followed_is_left_out(name: str) -> None:
    net = Net([3, 5])
    value = net.add("relu", net.x)
    if name == "unknown input":
        ids = net.main.add_parameter("ids", mgx_numba.shape(type="int64", lens=[3, 5]))
        value = net.add("add", value, net.add("convert", ids, target_type=net.x.shape().type()))
    if name == "no finite means":
        value = net.add("add", value, net.main.add_literal(np.full((3, 5), np.inf, np.float32)))
    assert net.expected(value) is None


def test_rows_of_a_table_and_tokens_before_others() -> None:
    net = Net([1, 1, 6])
    ids = net.main.add_parameter("ids", mgx_numba.shape(type="int64", lens=[1, 9]))
    table = net.rng.standard_normal((50, 6)).astype(np.float32) + 2
    rows = net.add("gather", net.main.add_literal(table), ids, axis=0)
    value = net.add("concat", net.x, rows, axis=1)
    found = net.expected(value)
    assert found is not None and np.abs(found - 0.9 * table.mean(0)).max() < 0.6


def test_one_token_of_many_has_the_axes_of_the_index() -> None:
    """A number as index, whose shape is an axis of stride 0, was taken for an axis of the result."""
    net = Net([400, 3, 6])
    value = net.add("relu", net.bias(net.add("dot", net.x, net.weights(400, 6, 8)), 8, 2))
    token = net.add("gather", value, net.main.add_literal(np.array(1)), axis=1)
    mean = net.add("squeeze", net.add("reduce_mean", value, axes=[1]), axes=[1])
    joined = net.add("concat", token, mean, axis=1)
    assert near(net.expected(joined), net.measured(1))


def test_an_index_out_of_range_is_left_to_a_run() -> None:
    net = Net([4, 6])
    value = net.add("relu", net.bias(net.add("dot", net.x, net.weights(6, 8)), 8))
    column = net.add("gather", value, net.main.add_literal(np.array([9])), axis=1)
    net.main.add_return([net.add("dot", column, net.weights(1, 4))])
    mgx_numba.quantize_bf16(net.program).compile("ref")
    with pytest.raises(mgx_numba.errors.ShapeError, match="index 9 is out of range"):
        net.program.run({"x": np.zeros((4, 6), np.float32)})


def test_empty_values_and_dynamic_lengths_are_followed_or_left() -> None:
    net = Net([3, 0])
    value = net.add("concat", net.add("relu", net.x), net.main.add_literal(np.zeros((3, 0), np.float32)), axis=1)
    net.expected(value)
    many = mgx_numba.shape.dynamic_dimension(1, 8)
    p = mgx_numba.program()
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", dyn_dims=[many, mgx_numba.shape.dynamic_dimension(6, 6)]))
    rng = np.random.default_rng(2)
    first, second = (main.add_literal(rng.standard_normal(lens).astype(np.float32)) for lens in ((6, 9), (9, 5)))
    value = main.add_instruction(op("relu"), [main.add_instruction(op("dot"), [x, first])])
    main.add_return([main.add_instruction(op("dot"), [value, second])])
    product = p.portable.main.results()[0]
    (found,) = expected_means(p.portable.main, [product]).values()
    assert found.shape == (9,) and (found > 0).all()


@pytest.mark.parametrize("known", [True, False])
def test_an_index_that_is_a_scalar_takes_its_axis_away(known: bool) -> None:
    """Draws of one token of each sequence, as classifiers take it, had an axis more than it has: quantisation of models
    that move its axes ended with a ValueError."""
    net = Net([20, 5, 8])
    if known:
        at = net.main.add_literal(np.array(0, np.int64))
    else:
        at = net.main.add_parameter("at", mgx_numba.shape(type="int64", lens=[1], strides=[0]))
    token = net.add("gather", net.add("relu", net.bias(net.x, 8, axis=2)), at, axis=1)
    assert token.shape().lens() == [20, 8]
    turned = net.add("transpose", net.add("transpose", token, permutation=[1, 0]), permutation=[1, 0])
    found = net.expected(turned)
    assert near(found, net.measured(1), 0.95) if known else found is not None


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "LRN"])
def test_channels_that_only_weights_tell(operator: str) -> None:
    """An axis of channels without upper bound had 2**64 - 1 draws: a ValueError of NumPy."""
    nodes = {
        "Conv": "v = Conv(r, w)",
        "ConvTranspose": "v = ConvTranspose(r, w)",
        "LRN": "q = LRN<size = 3>(r) v = Conv(q, w)",
    }[operator]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, C, H, W] x, float[4, 4, 2, 2] w)
        => (float[N, 4, H1, W1] y) {{ r = Relu(x) {nodes} s = Relu(v) y = Conv(s, w) }}"""
    )
    values = np.random.default_rng(5).standard_normal((4, 4, 2, 2)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    del model.graph.input[1:]
    x = np.random.default_rng(6).standard_normal((1, 4, 6, 5)).astype(np.float32)
    wanted = np.asarray(mgx_numba.parse_onnx(model.SerializeToString()).compile("ref").run({"x": x})[0])
    found = mgx_numba.quantize_fp16(mgx_numba.parse_onnx(model.SerializeToString())).compile("ref").run({"x": x})[0]
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0.02, atol=0.02 * np.abs(wanted).max())
