"""Readers of files against the packages of their formats, where these are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mgx_numba.llm.files.gguf import GgufFile
from mgx_numba.llm.files.opened import TransformersWeights
from mgx_numba.ops.block_layouts import LAYOUTS

from .test_gguf import small
from .writing import random_blocks


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_are_those_of_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    raw = random_blocks(name, (3, 512), np.random.default_rng(0))
    right = gguf.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(LAYOUTS[name].dequantize(raw), right)


def test_files_are_those_of_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    small(tmp_path / "model.gguf", "llama", ["q4_0", "f16", "q5_1"], layers=1)
    right, file = gguf.GGUFReader(tmp_path / "model.gguf"), GgufFile(tmp_path / "model.gguf")
    assert file.names == [tensor.name for tensor in right.tensors]
    for tensor in right.tensors:
        found = file.weight(tensor.name)
        np.testing.assert_array_equal(found.dense(), gguf.dequantize(tensor.data, tensor.tensor_type))
    assert file.metadata["general.architecture"] == right.fields["general.architecture"].contents()
    assert file.metadata["tokenizer.ggml.tokens"] == right.fields["tokenizer.ggml.tokens"].contents()


def test_folders_are_those_of_safetensors(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    given = {"a": rng.standard_normal((3, 4)).astype(np.float16), "b": rng.standard_normal(5), "c": np.zeros((0, 2))}
    numpy.save_file(given, tmp_path / "model.safetensors")
    folder = TransformersWeights(tmp_path)
    assert sorted(folder.names) == sorted(given)
    for name, array in given.items():
        np.testing.assert_array_equal(folder.weight(name).array, array)
    assert folder.weight("d") is None
