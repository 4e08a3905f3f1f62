"""Small model files: GGUF files with random blocks, and transformers folders."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mgx_numba.ops.block_layouts import LAYOUTS

KINDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14,
         "bf16": 30}  # fmt: skip


def random_blocks(layout: str, lens: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return rows of random codes, with scales for weights of about 0.1."""
    own = LAYOUTS[layout]
    raw = rng.integers(0, 256, (*lens[:-1], own.row_bytes(lens[-1]))).astype(np.uint8)
    blocks = raw.reshape(-1, own.bytes)
    large = 0.1 / (1 << (own.bits - 1)) / (32 if own.stored == 256 else 1)
    put = {0: large, 2: -large * 8 if own.stored == 32 else large * 8} if own.has_offsets else {0: large}
    for at, value in ({208: large} if layout == "q6_k" else put).items():
        blocks[:, at : at + 2] = np.full(len(blocks), value, np.float16).view(np.uint8).reshape(-1, 2)
    return raw


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """Write a GGUF file; arrays in a layout are rows of bytes."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def member(value: Any) -> tuple[int, bytes]:
        if isinstance(value, str):
            return 8, text(value)
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        if isinstance(value, int):
            return 4, struct.pack("<I", value)
        kinds = [member(each) for each in value]
        return 9, struct.pack("<IQ", kinds[0][0], len(kinds)) + b"".join(data for _, data in kinds)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = member(value)
        head += text(key) + struct.pack("<I", kind) + data
    at = 0
    for name, (kind, array) in tensors.items():
        lens = array.shape if kind not in LAYOUTS else (*array.shape[:-1], LAYOUTS[kind].depth(array.shape[-1]))
        head += text(name) + struct.pack("<I", len(lens)) + struct.pack(f"<{len(lens)}Q", *lens[::-1])
        head += struct.pack("<IQ", KINDS[kind], at)
        at += array.nbytes + -array.nbytes % 32
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, array in tensors.values():
            file.write(array.tobytes())
            file.write(bytes(-array.nbytes % 32))


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file of float32 arrays."""
    entries, at = {}, 0
    for name, array in tensors.items():
        entries[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    head = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(array.tobytes() for array in tensors.values()))
