"""Agreement of ResNet-50 in 8 bits with float32: ``python -m tests.accuracy.resnet50 --images 200``.

Its weights and the statistics of its batch normalisations are random, but for the last layer, whose rows are the mean
features of each class of images (waves over colours, in any contrast and with noise). With random rows, which is
``--head random``, all images are of two classes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

import mgx_numba
from bench.models import build

__all__ = ["Agreement", "agreement", "images", "with_head"]

WAVES = 6
"""Plane waves in an image: enough that no two classes are alike."""
MOST_CLASSES = 100
"""Classes of the images: about as many as there are images to test."""
SHOWN = 2
"""Images of each class that its features are the mean of."""


def images(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """float32 [labels, 3, size, size]: for each label its waves and colours, moved, in another contrast and with noise;
    about as large as normalised photographs."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    found = np.empty((len(labels), 3, size, size), np.float32)
    for image, label in zip(found, labels):
        own = np.random.default_rng([int(label), 12])
        waves = np.broadcast_to(own.normal(0, 0.7, (3, 1, 1)), image.shape).copy()
        for _ in range(WAVES):
            fx, fy = own.uniform(-16, 16, 2)
            waves += own.normal(0, 0.6, (3, 1, 1)) * np.sin(2 * np.pi * (fx * x + fy * y + rng.uniform(0, 1)))
        image[...] = rng.uniform(0.7, 1.2) * waves + rng.normal(0, 0.1, image.shape)
    return found


def with_head(model: onnx.ModelProto, batch: int, size: int) -> onnx.ModelProto:
    """A copy whose last layer, on its features less their mean, has the mean features of each class as rows."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    last = copy.graph.node[-1]
    features = onnx.ModelProto()
    features.CopyFrom(model)
    del features.graph.output[:]
    features.graph.output.append(helper.make_tensor_value_info(last.input[0], 1, None))
    compiled = mgx_numba.parse_onnx(features).compile("cpu")
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    classes = min(constants[last.input[1]].dims[0], MOST_CLASSES)
    labels = np.resize(np.arange(classes), (SHOWN, -(-classes // batch) * batch))
    found = [np.asarray(compiled.run({"input": images(part, size, 50)})[0]) for part in labels.reshape(-1, batch)]
    means = np.concatenate(found).reshape(SHOWN, -1, found[0].shape[1])[:, :classes].mean(0)
    rows = means - means.mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for name, value in ((last.input[1], rows), (last.input[2], -rows @ means.mean(0))):
        constants[name].CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))
    copy.graph.output[0].type.tensor_type.shape.dim[1].dim_value = classes
    return copy


@dataclass(frozen=True)
class Agreement:
    """Number of images with equal class, number of distinct classes that float32 finds, number of images with the
    correct class, and the error of the scores over their spread between images."""

    share: float
    classes: int
    right: float
    error: float


def agreement(scale: str, count: int, batch: int = 8, observer: str = "minmax", head: str = "means") -> Agreement:
    """`quantize_int8` against float32 on ``count`` images that calibration has not seen."""
    rng = np.random.default_rng(7)
    model = build("resnet50", batch=batch, scale=scale)
    size = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value

    def some(seed: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, MOST_CLASSES if scale == "full" else 10, batch)
        return images(labels, size, seed), labels

    if head == "means":
        model = with_head(model, batch, size)
    wide = mgx_numba.parse_onnx(model)
    narrow = wide.clone()
    mgx_numba.quantize_int8(narrow, [{"input": some(seed)[0]} for seed in range(1, 5)], observer=observer)
    for p in (wide, narrow):
        p.compile("cpu")
    batches = [some(100 + k) for k in range(-(-count // batch))]
    a, b = (np.concatenate([np.asarray(p.run({"input": x})[0]) for x, _ in batches])[:count] for p in (wide, narrow))
    labels = np.concatenate([labels for _, labels in batches])[:count]
    best = a.argmax(1)
    error = np.linalg.norm(a - b) / np.linalg.norm(a - a.mean(0))
    return Agreement(
        float((best == b.argmax(1)).mean()), len(set(best.tolist())), float((best == labels).mean()), float(error)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--scale", default="full", choices=("full", "tiny"))
    parser.add_argument("--observer", default="minmax", choices=("minmax", "percentile", "entropy", "mse"))
    parser.add_argument("--head", default="means", choices=("means", "random"))
    given = parser.parse_args()
    found = agreement(given.scale, given.images, observer=given.observer, head=given.head)
    print(f"{given.images} images, {found.classes} classes found, {found.right:.1%} right in float32")
    print(f"the same class in 8 bits: {found.share:.1%}; error of scores {found.error:.3g}")


if __name__ == "__main__":
    main()
