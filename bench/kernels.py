"""Single kernels to compare with rooflines and other libraries: products, convolutions, pointwise and row kernels.

Each is an ONNX graph of one or a few nodes, compiled as a model is. Its result stays in the arena, so that the kernel
is timed and not the system's memory allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from bench.models import inputs
from bench.models.builder import GraphBuilder
from bench.peers import is_installed
from bench.roofs import Work
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.memory import aligned_empty
from mgx_numba.runtime.plan import Plan, Pointer, Region, Step
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions

__all__ = ["KERNELS", "KernelCase", "compile_kernel", "library_function", "limited_blas"]

OPSET = 20
_ALIGNMENT = 64
_ROWS, _COLUMNS = 8192, 4096  # 128 MiB of float32: larger than any cache, as the images are
_MATRIX, _HALF = (_ROWS, _COLUMNS), (_ROWS, _COLUMNS // 2)
_GROUPS = 4
_STACK = (64, 1024, 512)
_IMAGES, _LAST = (48, 64, 128, 128), (48, 128, 128, 64)
_SMALL = (*_IMAGES[:2], _IMAGES[2] // 2, _IMAGES[3] // 2)

Function = Callable[[], object]


@dataclass(frozen=True)
class KernelCase:
    """One kernel. ``kind``: gemm, convolution, pointwise, rows or data; ``shape`` is m, n, k of a product."""

    name: str
    kind: str
    build: Callable[[GraphBuilder], None]
    flops: float
    shape: tuple[int, ...] = ()

    def model(self) -> onnx.ModelProto:
        graph = GraphBuilder(self.name, OPSET)
        self.build(graph)
        return graph.model()


def _gemm(name: str, m: int, n: int, k: int) -> KernelCase:
    def build(g: GraphBuilder) -> None:
        x = g.input("x", [m, k])
        g.output("y", g.node("MatMul", x, g.weight("w", g.normal(k, n, std=k**-0.5))), [m, n])

    return KernelCase(name, "gemm", build, 2.0 * m * n * k, (m, n, k))


def _convolution(name: str, channels: int, size: int) -> KernelCase:
    """Return a 3x3 convolution that keeps its image's size, with bias and ReLU; flops are those of the direct
    method."""

    def build(g: GraphBuilder) -> None:
        x = g.input("x", [1, channels, size, size])
        w = g.weight("w", g.normal(channels, channels, 3, 3, std=(9 * channels) ** -0.5))
        bias = g.weight("b", g.normal(channels, std=0.1))
        y = g.node("Conv", x, w, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        g.output("y", g.node("Relu", y), [1, channels, size, size])

    return KernelCase(name, "convolution", build, 18.0 * channels * channels * size * size, (channels, size))


def _streaming(
    name: str,
    kind: str,
    flops_each: float,
    body: Callable[..., str],
    *operands: Sequence[int],
    result: Sequence[int] = (),
) -> KernelCase:
    """Return a function of large tensors with these lengths; the result has the first operand's lengths unless
    given."""
    operands = operands or (_MATRIX,)

    def build(g: GraphBuilder) -> None:
        values = [g.input(f"x{k}", lens) for k, lens in enumerate(operands)]
        g.output("y", body(g, *values), result or operands[0])

    return KernelCase(name, kind, build, flops_each * float(np.prod(operands[0])))


def _layer_norm(g: GraphBuilder, x: str) -> str:
    scale, bias = (g.weight(name, g.normal(_COLUMNS, std=0.1, mean=1.0)) for name in ("scale", "bias"))
    return g.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _rms_norm(g: GraphBuilder, x: str) -> str:
    square = g.node("ReduceMean", g.node("Mul", x, x), g.ints(-1), keepdims=1)
    root = g.node("Sqrt", g.node("Add", square, g.const(1e-5)))
    return g.node("Mul", g.node("Div", x, root), g.weight("scale", g.normal(_COLUMNS, std=0.1, mean=1.0)))


def _per_channel(op: str, count: int) -> Callable[..., str]:
    """Return a normalisation of images with ``count`` parameters per channel, of which the last is a variance."""

    def body(g: GraphBuilder, x: str) -> str:
        weights = [g.weight(f"w{k}", g.uniform(_IMAGES[1], low=0.5, high=1.5)) for k in range(count)]
        return g.node(op, x, *weights, epsilon=1e-5)

    return body


def _gelu(g: GraphBuilder, x: str, y: str) -> str:
    return g.node("Gelu", g.node("Add", x, y))


def _arg_max(axis: int) -> Callable[..., str]:
    return lambda g, x: g.node("Cast", g.node("ArgMax", x, axis=axis), to=onnx.TensorProto.FLOAT)


def _shuffle(g: GraphBuilder, x: str) -> str:
    """Append the channel shuffle of grouped convolutions."""
    n, c, h, w = _IMAGES
    split = g.node("Reshape", x, g.ints(n, _GROUPS, c // _GROUPS, h, w))
    return g.node("Transpose", split, perm=[0, 2, 1, 3, 4])


def _channels_last(op: str, **attributes: Any) -> Callable[..., str]:
    """Return an operator on images in channels-last memory, as within a compiled model."""

    def body(g: GraphBuilder, x: str) -> str:
        y = g.node(op, g.node("Transpose", x, perm=[0, 3, 1, 2]), **attributes)
        return g.node("Transpose", y, perm=[0, 2, 3, 1])

    return body


def _enlarged(mode: str) -> Callable[..., str]:
    """Return a resize of images to twice the height and width."""
    rule = "asymmetric" if mode == "nearest" else "half_pixel"

    def body(g: GraphBuilder, x: str) -> str:
        sizes = g.ints(*_IMAGES)
        return g.node("Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=rule, nearest_mode="floor")

    return body


KERNELS: dict[str, KernelCase] = {
    case.name: case
    for case in (
        _gemm("gemm_1024", 1024, 1024, 1024),
        _gemm("bert_attention", 128, 768, 768),
        _gemm("bert_inner", 128, 3072, 768),
        _gemm("bert_outer", 128, 768, 3072),
        _gemm("resnet_56x56_64_64", 3136, 64, 64),
        _gemm("resnet_56x56_64_256", 3136, 256, 64),
        _gemm("resnet_56x56_256_64", 3136, 64, 256),
        _gemm("resnet_28x28_128_512", 784, 512, 128),
        _gemm("resnet_28x28_512_128", 784, 128, 512),
        _gemm("resnet_14x14_256_1024", 196, 1024, 256),
        _gemm("resnet_14x14_1024_256", 196, 256, 1024),
        _gemm("resnet_7x7_512_2048", 49, 2048, 512),
        _gemm("resnet_7x7_2048_512", 49, 512, 2048),
        _convolution("resnet_3x3_64", 64, 56),
        _convolution("resnet_3x3_128", 128, 28),
        _convolution("resnet_3x3_256", 256, 14),
        _convolution("resnet_3x3_512", 512, 7),
        _streaming("relu", "pointwise", 1, lambda g, x: g.node("Relu", x)),
        _streaming("add_relu", "pointwise", 2, lambda g, x, y: g.node("Relu", g.node("Add", x, y)), _MATRIX, _MATRIX),
        _streaming("add_gelu", "pointwise", 6, _gelu, _MATRIX, _MATRIX),
        _streaming(
            "scale_channels", "pointwise", 1, lambda g, x, s: g.node("Mul", x, s), _IMAGES, (*_IMAGES[:2], 1, 1)
        ),
        _streaming("batch_norm", "pointwise", 2, _per_channel("BatchNormalization", 4), _IMAGES),
        _streaming("odd_rows", "pointwise", 1, lambda g, x, s: g.node("Mul", x, s), (8191, 4099), (4099,)),
        _streaming("softmax", "rows", 5, lambda g, x: g.node("Softmax", x, axis=-1)),
        _streaming("log_softmax", "rows", 5, lambda g, x: g.node("LogSoftmax", x, axis=-1)),
        _streaming("softmax_channels", "rows", 5, lambda g, x: g.node("Softmax", x, axis=1), _IMAGES),
        _streaming("layer_norm", "rows", 8, _layer_norm),
        _streaming("rms_norm", "rows", 4, _rms_norm),
        _streaming("instance_norm", "rows", 8, _per_channel("InstanceNormalization", 2), _IMAGES),
        _streaming("mean_rows", "rows", 1, lambda g, x: g.node("ReduceMean", x, g.ints(1)), result=(_ROWS, 1)),
        _streaming("mean_columns", "rows", 1, lambda g, x: g.node("ReduceMean", x, g.ints(0)), result=(1, _COLUMNS)),
        _streaming(
            "mean_middle", "rows", 1, lambda g, x: g.node("ReduceMean", x, g.ints(1)), _STACK, result=(64, 1, 512)
        ),
        _streaming("mean_all", "rows", 1, lambda g, x: g.node("ReduceMean", x, g.ints(0, 1)), result=(1, 1)),
        _streaming(
            "mean_colours", "rows", 1, lambda g, x: g.node("ReduceMean", x, g.ints(0)), (1 << 23, 3), result=(1, 3)
        ),
        _streaming(
            "max_channels",
            "rows",
            1,
            lambda g, x: g.node("ReduceMax", x, g.ints(1)),
            _IMAGES,
            result=(_IMAGES[0], 1, *_IMAGES[2:]),
        ),
        _streaming("arg_max_rows", "rows", 1, _arg_max(1), result=(_ROWS, 1)),
        _streaming("arg_max_columns", "rows", 1, _arg_max(0), result=(1, _COLUMNS)),
        _streaming("running_sum_rows", "rows", 1, lambda g, x: g.node("CumSum", x, g.ints(1))),
        _streaming("running_sum_columns", "rows", 1, lambda g, x: g.node("CumSum", x, g.ints(0))),
        _streaming("transpose", "data", 0, lambda g, x: g.node("Transpose", x, perm=[1, 0]), result=_MATRIX[::-1]),
        _streaming("concat", "data", 0, lambda g, x, y: g.node("Concat", x, y, axis=1), _HALF, _HALF, result=_MATRIX),
        _streaming(
            "channel_shuffle",
            "data",
            0,
            _shuffle,
            _IMAGES,
            result=(_IMAGES[0], _IMAGES[1] // _GROUPS, _GROUPS, *_IMAGES[2:]),
        ),
        _streaming(
            "channels_last",
            "data",
            0,
            lambda g, x: g.node("Transpose", x, perm=[0, 2, 3, 1]),
            (11, 3, 1024, 1024),
            result=(11, 1024, 1024, 3),
        ),
        _streaming(
            "max_pool",
            "data",
            1,
            lambda g, x: g.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
            _IMAGES,
            result=(*_IMAGES[:2], _IMAGES[2] // 2, _IMAGES[3] // 2),
        ),
        _streaming(
            "max_pool_last",
            "data",
            1,
            _channels_last("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
            _LAST,
            result=(_LAST[0], _LAST[1] // 2, _LAST[2] // 2, _LAST[3]),
        ),
        _streaming(
            "average_pool_last",
            "data",
            1,
            _channels_last("AveragePool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
            _LAST,
        ),
        _streaming(
            "max_pool_3",
            "data",
            1,
            lambda g, x: g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            _IMAGES,
            result=(*_IMAGES[:2], _IMAGES[2] // 2, _IMAGES[3] // 2),
        ),
        _streaming("resize_nearest", "data", 0, _enlarged("nearest"), _SMALL, result=_IMAGES),
        _streaming("resize_linear", "data", 8, _enlarged("linear"), _SMALL, result=_IMAGES),
        _streaming("top_k", "data", 1, lambda g, x: g.node("TopK", x, g.ints(5), axis=1), result=(_ROWS, 5)),
        _streaming("lrn_last", "data", 8, _channels_last("LRN", size=5, alpha=1e-4, beta=0.75), _LAST),
    )
}


def compile_kernel(case: KernelCase, threads: int, fast_math: bool = True) -> Work:
    """Compile a case for the CPU; its bytes are those of inputs, weights and outputs.

    Raises:
        ValueError: a part would run on the host, or the result's shape is unknown before it runs.
    """
    model = case.model()
    options = TargetOptions(fast_math=fast_math, num_threads=threads)
    plan = _kept_in_arena(lower(optimize(parse_onnx(model), options), options), case.name)
    feeds = inputs(case.name, model)
    arrays = [_aligned(feeds[p.name]) for p in plan.parameters]
    executable = Executable(plan, num_threads=threads)
    moved = sum(array.nbytes for array in arrays)
    moved += sum(4 * int(np.prod(weight.dims)) for weight in model.graph.initializer)
    moved += sum(4 * int(np.prod([d.dim_value for d in o.type.tensor_type.shape.dim])) for o in model.graph.output)
    return Work(lambda: executable.run(arrays), case.flops, float(moved))


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy aligned like a program's own values."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _kept_in_arena(plan: Plan, name: str) -> Plan:
    """Return the plan with its outputs at the end of the arena instead of in new arrays."""
    starts, end = [], plan.arena_bytes
    for spec in plan.outputs:
        if spec.lens is None:
            raise ValueError(f"kernel {name}: the shape of its result is known only when it runs")
        starts.append(end := -(-end // _ALIGNMENT) * _ALIGNMENT)
        end += int(np.prod(spec.lens)) * np.dtype(spec.dtype).itemsize

    def moved(value: Any) -> Any:
        if isinstance(value, Pointer) and value.region is Region.OUTPUT:
            return Pointer(Region.ARENA, 0, starts[value.index] + value.offset)
        return value

    steps: list[Any] = []
    for step in plan.steps:
        if not isinstance(step, Step):
            raise ValueError(f"kernel {name}: {step.instruction or step.label} runs on the host")
        views = tuple(replace(view, pointer=moved(view.pointer)) for view in step.outputs)
        steps.append(replace(step, args=tuple(map(moved, step.args)), outputs=views))
    return replace(plan, steps=steps, arena_bytes=end, outputs=[])


def library_function(case: KernelCase, library: str) -> Function | None:
    """Return a product of the case's shape by ``numpy`` (its BLAS) or ``torch``, into preallocated memory.

    None for other kinds of kernel. Call it inside `limited_blas`.
    """
    if case.kind != "gemm":
        return None
    m, n, k = case.shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(lens, dtype=np.float32) for lens in ((m, k), (k, n)))
    out = np.empty((m, n), np.float32)
    if library == "numpy":
        return lambda: np.matmul(a, b, out=out)
    import torch

    x, y, result = (torch.from_numpy(array) for array in (a, b, out))
    return lambda: torch.matmul(x, y, out=result)


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Limit other libraries to ``threads`` threads inside a ``with`` block; PyTorch keeps that number."""
    from threadpoolctl import threadpool_limits

    if is_installed("torch"):
        import torch

        torch.set_num_threads(threads)
    with threadpool_limits(limits=threads):
        yield
