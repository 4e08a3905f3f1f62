"""Random products, convolutions and attentions as one-operator programs in float16, with descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from bench.gpu_tiles import types_of
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction, line_padded
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program

__all__ = ["KINDS", "Attention", "Convolution", "Product", "length", "problems"]

F16, DEVICE = Type.half_type, "cuda"
LANES = 8
"""Elements of a vector of 16 bytes."""
MOST_FLOPS = 4e12
"""Most operations of a convolution or attention: a few milliseconds, of which a sample takes several."""
MOST_ELEMENTS = 1 << 28
"""Most elements of an operand or of all scores of an attention."""


def length(rng: np.random.Generator, low: int, high: int) -> int:
    """Return a length whose logarithm is uniform: a third multiples of 64, a third multiples of 8, a third any."""
    drawn = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
    step = int(rng.choice([64, 8, 1]))
    return int(np.clip(-(-drawn // step) * step, low, high))


def _filled(count: int, seed: int) -> np.ndarray:
    """Return float16 numbers around 0, repeated with a period that no power of two divides."""
    return np.resize(np.random.default_rng(seed).standard_normal(1_000_003, np.float32).astype(np.float16), count)


@dataclass(frozen=True)
class Product:
    """``x[rows, depth] @ w[depth, columns]``.

    Attributes:
        right: ``constant``; or an input, with contiguous ``rows`` or ``columns``.
    """

    rows: int
    columns: int
    depth: int
    right: str

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Product:
        """Draw a product: 1 to 50,000 rows, 8 to 16,384 columns and terms."""
        rows, columns, depth = length(rng, 1, 50_000), length(rng, 8, 16_384), length(rng, 8, 16_384)
        return cls(rows, columns, depth, str(rng.choice(["constant"] * 4 + ["rows", "columns"])))

    @property
    def name(self) -> str:
        """Return a short text that identifies the problem."""
        return f"{self.rows}x{self.columns}x{self.depth} {self.right}"

    @property
    def flops(self) -> float:
        """Return the operations."""
        return 2.0 * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> float:
        """Return the least bytes that are read and written."""
        return 2.0 * (self.rows * (self.columns + self.depth) + self.columns * self.depth)

    def program(self) -> Program:
        """Return the program."""
        program = Program()
        m, lens = program.main, (self.depth, self.columns)
        x = m.add_parameter("x", Shape(F16, (self.rows, self.depth)))
        if self.right == "constant":
            w = m.add_literal(_filled(prod(lens), 1).reshape(lens))
        elif self.right == "rows":
            w = m.add_parameter("w", Shape(F16, lens))
        else:
            w = m.add_instruction("transpose", [m.add_parameter("w", Shape(F16, lens[::-1]))], permutation=(1, 0))
        m.add_return([m.add_instruction("dot", [x, w])])
        return program

    def operands(self, torch: Any) -> dict[str, Any]:
        """Return tensors on the device by name; ``w`` as [depth, columns] for a constant."""
        x = torch.randn(self.rows, self.depth, device=DEVICE, dtype=torch.float16)
        if self.right == "constant":
            w = torch.from_numpy(_filled(self.depth * self.columns, 1)).to(DEVICE).view(self.depth, self.columns)
        else:
            lens = (self.depth, self.columns) if self.right == "rows" else (self.columns, self.depth)
            w = torch.randn(*lens, device=DEVICE, dtype=torch.float16)
        return {"x": x, "w": w}

    def rivals(self, torch: Any, given: dict[str, Any]) -> dict[str, Callable[[], Any]]:
        """Return torch's ways to compute the problem by name; constants may lie as each way likes."""
        x, w = given["x"], given["w"]
        if self.right == "columns":
            return {"columns": lambda: torch.nn.functional.linear(x, w)}
        ways: dict[str, Callable[[], Any]] = {"rows": lambda: x @ w}
        if self.right == "constant":
            turned = w.t().contiguous()
            ways["columns"] = lambda: torch.nn.functional.linear(x, turned)
        return ways

    def error(self, torch: Any, given: dict[str, Any], out: Any) -> float:
        """Return the relative error of up to 256 rows, the last among them."""
        rows = torch.randint(0, self.rows, (256,), device=DEVICE).unique()
        rows[-1] = self.rows - 1
        w = given["w"].t() if self.right == "columns" else given["w"]
        return _distance(out[rows], given["x"][rows].double() @ w.double())

    def contraction(self, padded: bool = False) -> GpuContraction:
        """Return the contraction; ``padded``: with rows of whole vectors, into which odd ones are copied."""
        depth = line_padded(self.depth, F16.size) if padded else self.depth
        columns = -(-self.columns // LANES) * LANES if padded else self.columns
        constant = self.right == "constant"
        strides = (columns, 1) if self.right == "rows" else (1, depth if constant or self.depth % LANES else self.depth)
        left = depth if padded and self.depth % LANES else self.depth
        problem = GemmProblem(
            self.rows, self.columns, self.depth, a_strides=(left, 1), b_strides=strides, types=types_of("fp16")
        )
        return GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=constant, any_order=constant)


@dataclass(frozen=True)
class Convolution:
    """A convolution of images whose channels are contiguous, with constant weights."""

    batch: int
    lens: tuple[int, int]
    channels: int
    out: int
    kernel: tuple[int, int]
    stride: int
    dilation: int
    groups: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Convolution:
        """Draw a convolution: 1 to 64 images, 7 to 224 pixels a side, 3 to 1024 channels; 30% have groups."""
        while True:
            kind = str(rng.choice(["dense"] * 7 + ["groups", "depthwise", "depthwise"]))
            kernel = (1, 3, 3, 3, 5, 7)[rng.integers(6)] if kind == "dense" else (3, 5, 7)[rng.integers(3)]
            groups, channels, out = 1, length(rng, 3, 1024), length(rng, 8, 1024)
            if kind == "groups":
                groups = int(rng.choice([2, 4, 8, 32]))
                channels, out = (groups * length(rng, 8, 64) for _ in range(2))
            elif kind == "depthwise":
                groups = out = channels = length(rng, 16, 1024)
            side = length(rng, 7, 224)
            drawn = cls(
                int(2 ** rng.integers(0, 7)), (side, side if rng.random() < 0.8 else length(rng, 7, 224)), channels,
                out,
                (kernel, kernel) if rng.random() < 0.85 else (1, kernel), int(rng.choice([1, 1, 1, 2])),
                int(rng.choice([1] * 9 + [2])), groups,
            )  # fmt: skip
            sizes = prod(drawn.lens) * drawn.batch * channels, prod(drawn.out_lens) * drawn.batch * out
            if min(drawn.out_lens) > 0 and drawn.flops < MOST_FLOPS and max(sizes) < MOST_ELEMENTS:
                return drawn

    @property
    def name(self) -> str:
        """Return a short text that identifies the problem."""
        more = f" s{self.stride}" * (self.stride > 1) + f" d{self.dilation}" * (self.dilation > 1)
        more += f" g{self.groups}" * (self.groups > 1)
        high, wide = self.lens
        return f"{self.batch}x{high}x{wide}x{self.channels}->{self.out} {self.kernel[0]}x{self.kernel[1]}{more}"

    @property
    def padding(self) -> tuple[int, int]:
        """Return the padding at each side of both axes."""
        high, wide = (self.dilation * (k // 2) for k in self.kernel)
        return high, wide

    @property
    def out_lens(self) -> tuple[int, int]:
        """Return the pixels of the result along both axes."""
        high, wide = (
            (n + 2 * p - self.dilation * (k - 1) - 1) // self.stride + 1
            for n, p, k in zip(self.lens, self.padding, self.kernel)
        )
        return high, wide

    @property
    def flops(self) -> float:
        """Return the operations."""
        return 2.0 * self.batch * prod(self.out_lens) * self.out * self.channels // self.groups * prod(self.kernel)

    @property
    def bytes(self) -> float:
        """Return the least bytes that are read and written."""
        weights = self.out * self.channels // self.groups * prod(self.kernel)
        pixels = prod(self.lens) * self.channels + prod(self.out_lens) * self.out
        return 2.0 * (self.batch * pixels + weights)

    @property
    def _weights(self) -> np.ndarray:
        lens = (self.out, self.channels // self.groups, *self.kernel)
        return _filled(prod(lens), 2).reshape(lens)

    def contraction(self, padded: bool = False) -> GpuContraction:
        """Return the contraction; ``padded``: with whole vectors of channels, into which others are copied."""
        channels = self.channels
        if padded and self.groups == 1 and channels % LANES:
            channels = line_padded(channels, F16.size)
        problem = ConvProblem(
            self.batch, channels, self.out, self.lens, self.kernel, (self.stride,) * 2, (self.dilation,) * 2,
            pads_begin=self.padding, pads_end=self.padding, groups=self.groups, types=types_of("fp16"),
        )  # fmt: skip
        return GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, any_order=True)

    def program(self) -> Program:
        """Return the program, whose input and result have the channels last."""
        program = Program()
        m = program.main
        x = m.add_parameter("x", Shape(F16, (self.batch, *self.lens, self.channels)))
        x = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
        y = m.add_instruction(
            "convolution", [x, m.add_literal(self._weights)], padding=self.padding, stride=(self.stride,) * 2,
            dilation=(self.dilation,) * 2, group=self.groups,
        )  # fmt: skip
        m.add_return([m.add_instruction("transpose", [y], permutation=(0, 2, 3, 1))])
        return program

    def operands(self, torch: Any) -> dict[str, Any]:
        """Return tensors on the device by name."""
        return {"x": torch.randn(self.batch, *self.lens, self.channels, device=DEVICE, dtype=torch.float16)}

    def _run(self, torch: Any, x: Any, w: Any) -> Any:
        return torch.nn.functional.conv2d(
            x, w, padding=self.padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    def rivals(self, torch: Any, given: dict[str, Any]) -> dict[str, Callable[[], Any]]:
        """Return torch's ways to compute the problem by name: cuDNN's fastest algorithm (``cudnn.benchmark``)."""
        x, w = given["x"].permute(0, 3, 1, 2), torch.from_numpy(self._weights).to(DEVICE)
        w = w.contiguous(memory_format=torch.channels_last)
        return {"channels_last": lambda: self._run(torch, x, w)}

    def error(self, torch: Any, given: dict[str, Any], out: Any) -> float:
        """Return the relative error of the first and the last image."""
        images = sorted({0, self.batch - 1})
        x, w = given["x"][images].permute(0, 3, 1, 2).float(), torch.from_numpy(self._weights).to(DEVICE).float()
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            wanted = self._run(torch, x, w)
        return _distance(out[images], wanted.permute(0, 2, 3, 1))


@dataclass(frozen=True)
class Attention:
    """Attention of ``heads`` heads over ``shared`` key heads.

    Attributes:
        form: "", "causal", or how a mask or bias broadcasts: ``keys`` (of bools, one row for each batch), ``scores``
            (of bools, for all heads), ``bias`` (for each head, one for the batch), ``all`` (of floats).
    """

    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    depth: int
    form: str

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Attention:
        """Draw an attention: up to 16 batches, 32 heads, 4096 queries and keys, heads of 16 to 256."""
        while True:
            groups, shared = int(rng.choice([1, 1, 1, 2, 4, 8])), int(rng.integers(1, 17))
            depth = int(rng.choice([16, 32, 40, 48, 64, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256]))
            form = str(rng.choice(["", "", "causal", "causal", "keys", "scores", "bias", "all"]))
            queries = 1 if rng.random() < 0.1 else length(rng, 16, 4096)
            keys = queries if form == "causal" or (queries > 1 and rng.random() < 0.6) else length(rng, 16, 4096)
            drawn = cls(int(2 ** rng.integers(0, 5)), groups * shared, shared, queries, keys, depth, form)
            if drawn.flops < MOST_FLOPS and drawn.batch * drawn.heads * queries * keys < MOST_ELEMENTS:
                return drawn

    @property
    def name(self) -> str:
        """Return a short text that identifies the problem."""
        return f"{self.batch}x{self.heads}/{self.shared} {self.queries}x{self.keys} d{self.depth} {self.form}".strip()

    @property
    def flops(self) -> float:
        """Return the operations of both products, half of them if it is causal."""
        return (2.0 if self.form == "causal" else 4.0) * self.batch * self.heads * self.queries * self.keys * self.depth

    @property
    def _mask_lens(self) -> tuple[int, ...]:
        b, h, s, t = self.batch, self.heads, self.queries, self.keys
        return {"keys": (b, 1, 1, t), "scores": (1, 1, s, t), "bias": (1, h, s, t), "all": (b, h, s, t)}.get(
            self.form, ()
        )

    @property
    def bytes(self) -> float:
        """Return the least bytes that are read and written."""
        rows = 2 * self.heads * self.queries + 2 * self.shared * self.keys
        mask = prod(self._mask_lens) * (2 if self.form in ("bias", "all") else 1) if self._mask_lens else 0
        return 2.0 * self.batch * rows * self.depth + mask

    def program(self) -> Program:
        """Return the program."""
        program = Program()
        m = program.main
        q = m.add_parameter("q", Shape(F16, (self.batch, self.heads, self.queries, self.depth)))
        kv = [m.add_parameter(n, Shape(F16, (self.batch, self.shared, self.keys, self.depth))) for n in ("k", "v")]
        mask = []
        if self._mask_lens:
            dtype = F16 if self.form in ("bias", "all") else Type.bool_type
            mask = [m.add_parameter("mask", Shape(dtype, self._mask_lens))]
        causal, scale = self.form == "causal", self.depth**-0.5
        m.add_return([m.add_instruction("attention", [q, *kv, *mask], scale=scale, causal=causal)])
        return program

    def operands(self, torch: Any) -> dict[str, Any]:
        """Return tensors on the device by name."""
        lens = {"q": (self.heads, self.queries), "k": (self.shared, self.keys), "v": (self.shared, self.keys)}
        half = {"device": DEVICE, "dtype": torch.float16}
        given = {name: torch.randn(self.batch, *own, self.depth, **half) for name, own in lens.items()}
        if self._mask_lens:
            mask = torch.randn(*self._mask_lens, **half)
            given["mask"] = mask if self.form in ("bias", "all") else mask > -1
            if given["mask"].dtype == torch.bool:
                given["mask"][..., 0] = True  # a row without keys is NaN for some back ends
        return given

    def rivals(self, torch: Any, given: dict[str, Any]) -> dict[str, Callable[[], Any]]:
        """Return torch's ways to compute the problem by name: each back end of `scaled_dot_product_attention`."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v, mask = given["q"], given["k"], given["v"], given.get("mask")
        causal, grouped = self.form == "causal", self.heads != self.shared

        def way(backend: Any) -> Callable[[], Any]:
            def run() -> Any:
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, mask, is_causal=causal, enable_gqa=grouped
                    )

            return run

        names = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
        if self.batch * self.heads * self.queries * self.keys < MOST_ELEMENTS // 8:
            names.append("MATH")
        return {name.split("_")[0].lower(): way(getattr(SDPBackend, name)) for name in names}

    def error(self, torch: Any, given: dict[str, Any], out: Any) -> float:
        """Return the relative error of the first heads of the first batch and the last of the last."""
        worst = 0.0
        for b, h in ((0, 0), (self.batch - 1, self.heads - 1)):
            own = h * self.shared // self.heads
            q, k, v = given["q"][b, h].float(), given["k"][b, own].float(), given["v"][b, own].float()
            scores = q @ k.t() * self.depth**-0.5
            if self.form == "causal":
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            elif self._mask_lens:
                mask = given["mask"].expand(self.batch, self.heads, self.queries, self.keys)[b, h]
                scores = scores + mask if self.form in ("bias", "all") else scores.masked_fill(~mask, -torch.inf)
            worst = max(worst, _distance(out[b, h], scores.softmax(-1) @ v))
        return worst


def _distance(got: Any, wanted: Any) -> float:
    return float((got.to(wanted.dtype) - wanted).norm() / wanted.norm())


Problem = Product | Convolution | Attention
KINDS: dict[str, tuple[Any, int]] = {
    "attention": (Attention, 50), "convolutions": (Convolution, 100), "products": (Product, 200),
}  # fmt: skip
"""Classes and numbers of problems by kind."""


def problems(kind: str, seed: int, count: int = 0) -> list[Problem]:
    """Return ``count`` problems, by default as many as `KINDS` says; another seed gives others."""
    cls, usual = KINDS[kind]
    rng = np.random.default_rng([seed, *map(ord, kind)])
    return [cls.drawn(rng) for _ in range(count or usual)]
