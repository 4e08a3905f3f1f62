"""Classify a picture: `python examples/classify.py [MODEL.onnx] [PICTURE]`
(needs the extra `image`).

Without arguments it takes the ResNet-50 that ships inside the `onnx` package, whose weights are all one number, and a
picture that it draws itself: what it shows is how a picture becomes an input and results become classes. With a model
of your own it prints the five best classes, named if the model's metadata or a file CLASSES.txt beside it names them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import onnx
from PIL import Image, ImageDraw

import mgx_numba as migraphx

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, as torchvision has them


def preprocess(picture: Image.Image, size: int) -> np.ndarray:
    """The middle of a picture as [1, 3, size, size] of float32."""
    scale = size / min(picture.size)
    resized = picture.resize([max(size, round(n * scale)) for n in picture.size], Image.Resampling.BILINEAR)
    left, top = ((n - size) // 2 for n in resized.size)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)).convert("RGB"), np.float32) / 255
    return ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None].astype(np.float32)


def class_names(path: Path, count: int) -> list[str]:
    """The names that the model's metadata (as Ultralytics writes it) or CLASSES.txt gives, else numbers."""
    properties = {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
    beside = path.with_name("CLASSES.txt")
    if "names" in properties:
        return [str(name) for name in dict(ast.literal_eval(properties["names"])).values()]
    return beside.read_text().splitlines() if beside.exists() else [f"class {k}" for k in range(count)]


def main() -> None:
    shipped = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped
    if len(sys.argv) > 2:
        picture = Image.open(sys.argv[2])
    else:
        picture = Image.new("RGB", (320, 240), "skyblue")
        ImageDraw.Draw(picture).ellipse((90, 50, 230, 190), fill="orange")

    program = migraphx.parse_onnx(path)
    (name,) = program.get_parameter_names()
    size = program.get_parameter_shapes()[name].lens()[-1]
    program.compile(migraphx.get_target("cpu"))

    (scores,) = program.run({name: preprocess(picture, size)})
    scores = np.asarray(scores).ravel()
    names = class_names(path, len(scores))
    for k in np.argsort(-scores, kind="stable")[:5]:
        print(f"{names[k]:20} {scores[k]:.6g}")


if __name__ == "__main__":
    main()
