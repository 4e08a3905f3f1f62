"""Transformers folders: the same weights as a GGUF file give the same logits; damaged folders are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.errors import FormatError, UnsupportedError
from mgx_numba.llm.architectures import GGUF_NAMES, LLAMA_NAMES
from mgx_numba.llm.files import open_model
from mgx_numba.llm.files.opened import TransformersWeights

from .families import write_family
from .running import step
from .test_gguf import HIDDEN, IDS, INNER, WORDS, small
from .writing import write_safetensors

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": WORDS, "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "eos_token_id": [2, 3], "tie_word_embeddings": True,
}  # fmt: skip


def folder_of(gguf: Path, folder: Path, shards: int) -> None:
    """Write the weights of a Qwen 3 GGUF file as a transformers folder."""
    file = open_model(gguf).source
    tensors = {}
    for role, name in LLAMA_NAMES.items():
        for i in range(2):
            found = file.weight(GGUF_NAMES[role].format(i=i) + ".weight") if role in GGUF_NAMES else None
            if found is not None:
                tensors[name.format(i=i) + ".weight"] = found.dense()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default", "template": "x"}]}))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    places = {name: f"model-{k % shards}.safetensors" for k, name in enumerate(names)}
    for file_name in set(places.values()):
        write_safetensors(folder / file_name, {n: tensors[n] for n in names if places[n] == file_name})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_gives_what_its_gguf_file_gives(shards: int, tmp_path: Path) -> None:
    small(tmp_path / "model.gguf", "qwen3", ["f32"])
    folder_of(tmp_path / "model.gguf", tmp_path / "folder", shards)
    results = []
    for path in (tmp_path / "model.gguf", tmp_path / "folder"):
        opened = open_model(path)
        program = opened.program()
        program.compile(mgx_numba.get_target("cpu"))
        results.append(step(program, opened.config, IDS)[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert opened.config.eos_ids == (2, 3) and opened.chat_template == "x" and opened.tokenizer_source is None


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no config\.json"):
        open_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("[]")
    with pytest.raises(FormatError, match="expected an object"):
        open_model(tmp_path)
    config.write_text(json.dumps(CONFIG | {"model_type": "unheard"}))
    with pytest.raises(UnsupportedError, match="unheard"):
        open_model(tmp_path)
    config.write_text(json.dumps(CONFIG | {"vocab_size": None}))
    with pytest.raises(FormatError, match="vocab_size"):
        open_model(tmp_path)
    config.write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
    with pytest.raises(UnsupportedError, match="quantised by 'awq'"):
        open_model(tmp_path)
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(FormatError, match="no safetensors file"):
        open_model(tmp_path)
    for data in (b"", b"\x10", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]"):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(FormatError):
            open_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(FormatError, match="in its folder"):
        open_model(tmp_path)


def _with_header(path: Path, change: Any) -> None:
    """Rewrite the header of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda h: h["b"].update(data_offsets=[8, 24]), r"'b' begins at byte 8, inside of the tensor before it"),
        (lambda h: h["b"].update(data_offsets=[16, 40]), r"'b' ends at byte 40 of 32: the file is cut short"),
        (lambda h: h["b"].update(data_offsets=[-1, 16]), r"'b': .*data_offsets \[-1, 16\] are malformed"),
        (lambda h: h["b"].pop("dtype"), r"'b': expected an object with dtype"),
        (lambda h: h.update(b=5), r"'b': expected an object with dtype"),
        (lambda h: h["b"].update(shape=[3]), r"'b' has 16 bytes, expected F32 \[3\]"),
        (lambda h: h["b"].update(shape=[True, 4]), r"shape \[True, 4\].* malformed"),
        (lambda h: h["b"].update(dtype="I32"), r"'b' is of type 'I32'"),
    ],
)
def test_damaged_headers_are_named(change: Any, message: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {k: np.ones(4, np.float32) for k in "ab"})
    _with_header(tmp_path / "model.safetensors", change)
    with pytest.raises((FormatError, UnsupportedError), match=message):
        TransformersWeights(tmp_path).weight("b")


@pytest.mark.parametrize("shard", [5, None, "", "a/b", "absent.safetensors"])
def test_shards_that_are_no_files_are_named(shard: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(FormatError, match=f"names {shard!r}, expected|{shard} cannot be read"):
        TransformersWeights(tmp_path)


@pytest.mark.parametrize(
    "name,data,message",
    [
        ("config.json", b"[" * 100000, r"config\.json: not a JSON file"),
        ("config.json", b"\xff", r"config\.json: not a text in UTF-8"),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja: not a text in UTF-8"),
        ("tokenizer_config.json", b'{"chat_template": [5]}', r"chat_template: expected objects with name"),
        ("tokenizer_config.json", b'{"chat_template": 5}', r"chat_template is of type int"),
        ("config.json", json.dumps(CONFIG | {"layer_types": []}).encode(), r"layer_types has 0 entries"),
        ("config.json", json.dumps(CONFIG | {"sliding_window": 1 << 70}).encode(), r"sliding_window is 11805"),
        ("config.json", json.dumps(CONFIG | {"rms_norm_eps": [1]}).encode(), r"qwen3 model is malformed"),
        ("config.json", json.dumps(CONFIG | {"head_dim": 32}).encode(), r"queries of layer 0 have 256 features.*128"),
    ],
)
def test_damaged_files_of_a_folder_are_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    gguf, folder = tmp_path / "small.gguf", tmp_path / "folder"
    small(gguf, "qwen3", ["f32"])
    folder_of(gguf, folder, 1)
    (folder / name).write_bytes(data)
    with pytest.raises(FormatError, match=message):
        open_model(folder).program()


def test_experts_of_other_lengths_are_named(tmp_path: Path) -> None:
    folder = write_family("mixtral", tmp_path / "folder")
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    _with_header(folder / "model.safetensors", lambda h: h[name]["shape"].reverse())
    with pytest.raises(FormatError, match="feed-forward weights of layer 1 do not fit"):
        open_model(folder).program()
