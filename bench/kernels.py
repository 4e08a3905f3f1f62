"""Single kernels to hold against the roofs and against other libraries: products, convolutions, pointwise and row work.

Each is an ONNX graph of a node or a few, compiled as a model is. Its result stays in the arena, so that what is timed
is the kernel and not the system handing out memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from mgx_numba.runtime.executor import Executable
from mgx_numba.runtime.plan import Plan, Pointer, Region, Step
from mgx_numba.targets.cpu.lowering import lower
from mgx_numba.targets.cpu.options import CpuOptions
from mgx_numba.targets.cpu.target import optimize

__all__ = ["KERNELS", "KernelCase", "compile_kernel", "library_function", "limited_blas"]

OPSET = 20
_ALIGNMENT = 64
_ROWS, _COLUMNS = 8192, 4096  # 128 MiB of float32, past any cache

Function = Callable[[], object]


@dataclass(frozen=True)
class KernelCase:
    """One kernel. ``kind``: gemm, convolution, pointwise or rows; ``shape`` is m, n, k of a product."""

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
    """A 3x3 convolution that keeps its image's size, with bias and ReLU; flops are those of the direct method."""

    def build(g: GraphBuilder) -> None:
        x = g.input("x", [1, channels, size, size])
        w = g.weight("w", g.normal(channels, channels, 3, 3, std=(9 * channels) ** -0.5))
        bias = g.weight("b", g.normal(channels, std=0.1))
        y = g.node("Conv", x, w, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        g.output("y", g.node("Relu", y), [1, channels, size, size])

    return KernelCase(name, "convolution", build, 18.0 * channels * channels * size * size, (channels, size))


def _streaming(name: str, kind: str, arrays: int, flops_each: float, body: Callable[..., str]) -> KernelCase:
    """A function of ``arrays`` large matrices, with a result of their size."""

    def build(g: GraphBuilder) -> None:
        values = [g.input(f"x{k}", [_ROWS, _COLUMNS]) for k in range(arrays)]
        g.output("y", body(g, *values), [_ROWS, _COLUMNS])

    return KernelCase(name, kind, build, flops_each * _ROWS * _COLUMNS)


def _layer_norm(g: GraphBuilder, x: str) -> str:
    scale, bias = (g.weight(name, g.normal(_COLUMNS, std=0.1, mean=1.0)) for name in ("scale", "bias"))
    return g.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _gelu(g: GraphBuilder, x: str, y: str) -> str:
    return g.node("Gelu", g.node("Add", x, y))


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
        _streaming("relu", "pointwise", 1, 1, lambda g, x: g.node("Relu", x)),
        _streaming("add_relu", "pointwise", 2, 2, lambda g, x, y: g.node("Relu", g.node("Add", x, y))),
        _streaming("add_gelu", "pointwise", 2, 6, _gelu),
        _streaming("softmax", "rows", 1, 5, lambda g, x: g.node("Softmax", x, axis=-1)),
        _streaming("layer_norm", "rows", 1, 8, _layer_norm),
    )
}


def compile_kernel(case: KernelCase, threads: int, fast_math: bool = True) -> Work:
    """The case compiled for the CPU; its bytes are those of inputs, weights and outputs.

    Raises:
        ValueError: part of it would run on the host, or its result has no shape before it runs.
    """
    model = case.model()
    options = CpuOptions(fast_math=fast_math, num_threads=threads)
    plan = _kept_in_arena(lower(optimize(parse_onnx(model), options), options), case.name)
    feeds = inputs(case.name, model)
    arrays = [np.ascontiguousarray(feeds[p.name]) for p in plan.parameters]
    executable = Executable(plan, num_threads=threads)
    moved = sum(array.nbytes for array in arrays)
    moved += sum(4 * int(np.prod(weight.dims)) for weight in model.graph.initializer)
    moved += sum(4 * int(np.prod([d.dim_value for d in o.type.tensor_type.shape.dim])) for o in model.graph.output)
    return Work(lambda: executable.run(arrays), case.flops, float(moved))


def _kept_in_arena(plan: Plan, name: str) -> Plan:
    """The plan with its outputs at the end of the arena instead of in new arrays."""
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
    """A product of the case's shape by ``numpy`` (its BLAS) or ``torch``, into memory that is there already.

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
    """Within, other libraries compute on so many threads; PyTorch keeps that number."""
    from threadpoolctl import threadpool_limits

    if is_installed("torch"):
        import torch

        torch.set_num_threads(threads)
    with threadpool_limits(limits=threads):
        yield
