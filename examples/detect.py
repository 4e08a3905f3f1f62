"""Find coloured shapes in a picture and draw boxes around them: `python examples/detect.py [PICTURE] [OUT.png]`
(needs the extra `image`).

The model is built here, with weights that need no training, and has the parts of a real detector: scores of two classes
(red and blue) for anchors of three sizes at every fourth pixel, boxes, and `NonMaxSuppression`, whose number of results
depends on the picture. ONNX Runtime's interface runs it (`mgx_numba.session`).
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

import mgx_numba.session as onnxruntime

CLASSES = ("red", "blue")
SIZES = (24, 40, 64)  # sides of anchors, in pixels
SIDE, STRIDE = 192, 4  # of the picture, and from anchor to anchor


def detector() -> onnx.ModelProto:
    """``image`` [1, 3, 192, 192], RGB from 0 to 1, to ``selected`` [n, 3] (image, class, anchor), ``boxes`` and
    ``scores`` of all anchors."""
    colours = np.array([[1, -1, -1], [-1, -1, 1]], np.float32).reshape(2, 3, 1, 1)
    constants = {"colours": colours}
    nodes = [
        helper.make_node("Conv", ["image", "colours"], ["distance"]),
        helper.make_node("Relu", ["distance"], ["hue"]),
    ]
    boxes, parts = [], []
    for size in SIZES:
        # Within the anchor's inner half nearly all pixels must have the colour, around it nearly none.
        inner, outer = np.zeros((2, 1, 2 * size, 2 * size), np.float32), np.ones((2, 1, 2 * size, 2 * size), np.float32)
        middle = slice(size // 2, size // 2 + size)
        inner[..., middle, middle] = 1 / size**2
        outer[..., middle, middle] = 0
        outer /= outer[0].sum()
        constants[f"filter{size}"] = inner - outer
        attributes = {"group": 2, "strides": [STRIDE, STRIDE], "pads": [size] * 2 + [size - 1] * 2}
        count = SIDE // STRIDE
        nodes += [
            helper.make_node("Conv", ["hue", f"filter{size}"], [f"map{size}"], **attributes),
            helper.make_node("Reshape", [f"map{size}", "flat"], [f"scores{size}"]),
        ]
        parts.append(f"scores{size}")
        centres = np.stack(np.meshgrid(np.arange(count), np.arange(count), indexing="ij"), -1).reshape(-1, 2) * STRIDE
        boxes.append(np.concatenate([centres - size / 2, centres + size / 2], 1))
    limits = {"most": np.int64(10), "overlap": np.float32(0.2), "least": np.float32(0.5)}
    constants |= {"boxes_": np.concatenate(boxes)[None].astype(np.float32), "flat": np.array([1, 2, -1]), **limits}
    nodes += [
        helper.make_node("Concat", parts, ["scores"], axis=2),
        helper.make_node("NonMaxSuppression", ["boxes_", "scores", "most", "overlap", "least"], ["selected"]),
        helper.make_node("Identity", ["boxes_"], ["boxes"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "detector",
        [info("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [
            info("selected", TensorProto.INT64, ["n", 3]),
            info("boxes", TensorProto.FLOAT, None),
            info("scores", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def drawn() -> Image.Image:
    """A picture with two red shapes and a blue one."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((20, 24, 59, 63), fill=(220, 20, 20))
    draw.rectangle((140, 130, 163, 153), fill=(230, 30, 30))
    draw.rectangle((100, 30, 163, 93), fill=(20, 20, 220))
    return picture


def main() -> None:
    picture = Image.open(sys.argv[1]).convert("RGB").resize((SIDE, SIDE)) if len(sys.argv) > 1 else drawn()
    out = sys.argv[2] if len(sys.argv) > 2 else "detected.png"
    session = onnxruntime.InferenceSession(detector().SerializeToString(), providers=["CPUExecutionProvider"])
    image = (np.asarray(picture, np.float32) / 255).transpose(2, 0, 1)[None]
    selected, boxes, scores = session.run(None, {"image": image})
    draw = ImageDraw.Draw(picture)
    for _, kind, anchor in selected:
        top, left, bottom, right = boxes[0, anchor]
        print(f"{CLASSES[kind]:5} {scores[0, kind, anchor]:.2f}  x {left:g} to {right:g}, y {top:g} to {bottom:g}")
        draw.rectangle((left, top, right, bottom), outline="black", width=2)
        draw.text((left + 3, top + 3), CLASSES[kind], fill="white")
    picture.save(out)
    print(f"{len(selected)} boxes drawn into {out}")


if __name__ == "__main__":
    main()
