"""Model graphs for tests and benchmarks: realistic structure and sizes, random weights, onnx alone.

A model and its feeds:

    model = build("bert", batch=1, scale="tiny")
    feeds = inputs("bert", model)
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from bench.models import bert, crnn, efficientnet, gpt2, mlp, mobilenet, resnet, rnn, unet, vit, yolo
from bench.models.data import input_specs, inputs, light_models

__all__ = ["MODELS", "SCALES", "Builder", "build", "input_specs", "inputs", "light_models"]

Builder = Callable[[int, str], onnx.ModelProto]
"""A function of the batch size and the scale."""

SCALES = ("full", "tiny")

MODELS: dict[str, Builder] = {
    "bert": bert.build,
    "crnn": crnn.build,
    "efficientnet_b0": efficientnet.build,
    "gpt2": gpt2.build,
    "gru": rnn.build_gru,
    "lstm": rnn.build_lstm,
    "mlp": mlp.build,
    "mobilenet_v2": mobilenet.build,
    "resnet50": resnet.build,
    "unet": unet.build,
    "vit": vit.build,
    "yolo": yolo.build,
    "yolo_leaky": yolo.build_leaky,
}


def build(name: str, *, batch: int = 1, scale: str = "full") -> onnx.ModelProto:
    """Return the model called `name` with fixed shapes; "tiny" keeps the structure of "full" with small dimensions.

    Raises ValueError for an unknown name or scale, or a batch below one.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: expected one of {', '.join(MODELS)}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: expected one of {', '.join(SCALES)}")
    if batch < 1:
        raise ValueError(f"batch is {batch}: expected at least 1")
    return MODELS[name](batch, scale)
