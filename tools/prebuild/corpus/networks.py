"""Whole networks: the benchmark's, those of the onnx package, and the tests' models with open lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

THREADS = (1, 2, 4, 16)
QUANTIZED = ("bert", "efficientnet_b0", "gpt2", "mobilenet_v2", "resnet50", "unet", "vit", "yolo", "lstm")
"""Networks that are compiled in lower precision too."""


def items() -> Iterator[Item]:
    """Return all networks in all precisions."""
    for name in MODELS:
        model = build(name)
        feeds = inputs(name, model)
        yield from _forms(name, model)
        if name in QUANTIZED:
            yield from _precisions(name, model, feeds)
    for name, path in light_models().items():
        model = randomize(onnx.load(path))
        yield from _forms(name, model)
        yield Item(f"{name}@8", partial(parsed, rebatch(model, 8)))
    for name, make in DYNAMIC.items():
        case = make()
        yield Item(name, partial(parsed, case.model), THREADS, {}, case.draw(np.random.default_rng(0)))


def _forms(name: str, model: onnx.ModelProto) -> Iterator[Item]:
    yield Item(name, partial(parsed, model), THREADS)
    yield Item(f"{name}, open batch", partial(parsed, with_open_batch(model)), (1, 4))


def _precisions(name: str, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
    def quantized(how: Any) -> Any:
        program = parsed(model)
        how(program)
        return program

    yield Item(f"{name} fp16", partial(quantized, mgx_numba.quantize_fp16))
    yield Item(f"{name} bf16", partial(quantized, mgx_numba.quantize_bf16))
    to_int8 = partial(mgx_numba.quantize_int8, t=mgx_numba.get_target("cpu"), calibration=[dict(feeds)])
    yield Item(f"{name} int8", partial(quantized, to_int8))
