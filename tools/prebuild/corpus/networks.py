"""Whole networks: the benchmark's, those of the onnx package, and the tests' models with open lengths."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx

import mgx_numba
from bench.light import randomize, rebatch
from bench.models import MODELS, build, inputs, light_models
from tests.dynamic.models import MODELS as DYNAMIC
from tools.prebuild.corpus.item import Item, parsed, with_open_batch

__all__ = ["items"]

THREADS = (1, 2, 8)
EXACT = {"fast_math": False}
QUANTIZED = ("bert", "efficientnet_b0", "gpt2", "mobilenet_v2", "resnet50", "unet", "vit", "yolo", "lstm")
"""Networks that are compiled in lower precision too."""
QUANTIZED_NODES = {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulNBits"}


def items() -> Iterator[Item]:
    """Return all networks in all precisions."""
    for name in MODELS:
        yield from _forms(name)
        if name in QUANTIZED:
            yield from _precisions(name)
    for name in light_models():
        yield from _forms(name)
        yield Item(f"{name}@8", lambda name=name: parsed(rebatch(_model(name), 8)), family=name)  # type: ignore[misc]
    for name, make in DYNAMIC.items():
        case = make()
        for kind, options in (("", {}), (", exact", EXACT)):
            feeds = case.draw(np.random.default_rng(0))
            narrow = any(node.op_type in QUANTIZED_NODES for node in case.model.graph.node)
            yield Item(name + kind, partial(parsed, case.model), THREADS, options, feeds, narrow=narrow)


@functools.lru_cache(maxsize=1)
def _model(name: str) -> onnx.ModelProto:
    return build(name) if name in MODELS else randomize(onnx.load(light_models()[name]))


def _forms(name: str) -> Iterator[Item]:
    yield Item(name, lambda: parsed(_model(name)), THREADS, family=name)
    yield Item(f"{name}, open batch", lambda: parsed(with_open_batch(_model(name))), (4,), family=name)
    yield Item(f"{name}, exact", lambda: parsed(_model(name)), THREADS[1:], EXACT, family=name)


def _precisions(name: str) -> Iterator[Item]:
    def quantized(how: Any) -> Any:
        program = parsed(_model(name))
        how(program)
        return program

    def to_int8(program: Any) -> None:
        feeds = inputs(name, _model(name))
        mgx_numba.quantize_int8(program, mgx_numba.get_target("cpu"), [feeds])

    for kind, how in (("fp16", mgx_numba.quantize_fp16), ("bf16", mgx_numba.quantize_bf16), ("int8", to_int8)):
        yield Item(f"{name} {kind}", partial(quantized, how), (4,), family=name, narrow=True)
