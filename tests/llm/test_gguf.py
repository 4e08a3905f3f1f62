"""GGUF files: what the reader finds, and programs against decoders in NumPy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba
from mgx_numba.codegen.cpu.attention.attention_kernel import decode_queries
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.errors import FormatError, OptionError, UnsupportedError
from mgx_numba.llm.build import build_decoder
from mgx_numba.llm.files import open_model
from mgx_numba.llm.files.gguf import GgufFile
from mgx_numba.llm.generation.engine import DecoderBatch
from mgx_numba.llm.model import LanguageModel
from mgx_numba.ops.block_layouts import LAYOUTS

from .reference import logits_of
from .running import step
from .writing import random_blocks, write_gguf

HIDDEN, INNER, WORDS = 256, 512, 90


def small(path: Path, name: str, kinds: list[str], layers: int = 2, **more: Any) -> None:
    """Write a decoder of 4 heads and 2 key heads whose matrices have the given types in turn."""
    rng = np.random.default_rng(len(kinds))
    head = more.pop("head", 64)
    tensors: dict[str, tuple[str, np.ndarray]] = {}

    def matrix(key: str, n: int, k: int) -> None:
        kind = kinds[len(tensors) % len(kinds)]
        if kind in LAYOUTS:
            tensors[key + ".weight"] = kind, random_blocks(kind, (n, k), rng)
            return
        dtype: Any = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[kind]
        tensors[key + ".weight"] = kind, (rng.standard_normal((n, k)) * 0.1).astype(dtype)

    def norm(key: str, n: int) -> None:
        tensors[key + ".weight"] = "f32", rng.uniform(0.5, 1.5, n).astype(np.float32)

    matrix("token_embd", WORDS, HIDDEN)
    for i in range(layers):
        at = f"blk.{i}."
        norm(at + "attn_norm", HIDDEN)
        for what, heads in (("q", 4), ("k", 2), ("v", 2)):
            matrix(f"{at}attn_{what}", heads * head, HIDDEN)
        matrix(at + "attn_output", HIDDEN, 4 * head)
        norm(at + "ffn_norm", HIDDEN)
        for what in ("gate", "up"):
            matrix(f"{at}ffn_{what}", INNER, HIDDEN)
        matrix(at + "ffn_down", HIDDEN, INNER)
        if name in ("qwen3", "gemma3"):
            norm(at + "attn_q_norm", head)
            norm(at + "attn_k_norm", head)
        if name == "gemma3":
            norm(at + "post_attention_norm", HIDDEN)
            norm(at + "post_ffw_norm", HIDDEN)
        if name == "qwen2":
            for what, heads in (("q", 4), ("k", 2), ("v", 2)):
                bias = rng.standard_normal(heads * head).astype(np.float32)
                tensors[f"{at}attn_{what}.bias"] = "f32", bias
    norm("output_norm", HIDDEN)
    if name == "llama":
        matrix("output", WORDS, HIDDEN)
    values = {
        "block_count": layers, "embedding_length": HIDDEN, "feed_forward_length": INNER, "context_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6, **more,
    }  # fmt: skip
    metadata = {"general.architecture": name, **{f"{name}.{key}": value for key, value in values.items()}}
    tokens = [f"<{k}>" for k in range(WORDS)]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1}
    write_gguf(path, metadata | {"tokenizer.chat_template": "{{ messages }}"}, tensors)


CASES = {
    "llama": ("llama", ["q4_1", "q4_1", "q6_k"], {}, 0, 2e-4),
    "qwen3": ("qwen3", ["q4_k", "q5_0"], {}, 4, 5e-2),
    "gemma3": ("gemma3", ["f16", "bf16", "f32"], {"layers": 6, "attention.sliding_window": 3}, 0, 2e-4),
}
"""Architecture, types of matrices, further metadata, accuracy level, and the bound of errors in parts of the largest
logit: rows of int8 have 2**-8 of their largest element."""


@pytest.mark.parametrize("name", CASES)
def test_logits_of_steps(name: str, tmp_path: Path) -> None:
    architecture, kinds, more, level, bound = CASES[name]
    small(tmp_path / "model.gguf", architecture, kinds, **more)
    opened = open_model(tmp_path / "model.gguf")
    right = np.stack([logits_of(opened, ids) for ids in IDS])
    program = opened.program(accuracy_level=level)
    program.compile(mgx_numba.get_target("cpu"))
    first, past = step(program, opened.config, [ids[:6] for ids in IDS])
    found = [first]
    for place in range(6, 9):
        logits, past = step(program, opened.config, [ids[place : place + 1] for ids in IDS], past)
        found.append(logits)
    assert np.abs(np.concatenate(found, 1) - right).max() < bound * np.abs(right).max()


IDS = [[1, 5, 9, 80, 33, 2, 7, 40, 41], [1, 88, 3, 3, 17, 60, 4, 5, 6]]


@pytest.mark.parametrize("kinds", [["q4_1"], ["q4_k", "q6_k"], ["q8_0"]])
def test_steps_of_several_tokens_have_the_bits_of_single_steps(kinds: list[str], tmp_path: Path) -> None:
    """Otherwise the rounding of rows to int8 makes a speculative text another than the plain one."""
    if decode_queries(tile_for(element_types("float32"))) < 2:
        pytest.skip("vectors are too short for two heads of a group")
    small(tmp_path / "model.gguf", "llama", kinds, context_length=512)
    decoder = LanguageModel(tmp_path / "model.gguf", num_threads=2).whole_decoder
    ids = np.random.default_rng(0).integers(3, WORDS, (2, 320))

    def logits(rows: slice, past: int, parts: list[int]) -> np.ndarray:
        engine = DecoderBatch(decoder, len(ids[rows]), True)
        engine.step(ids[rows, :past])
        ends = np.cumsum([past, *parts])
        return np.concatenate([engine.step(ids[rows, a:b]) for a, b in itertools.pairwise(ends)], axis=1)

    for past in (5, 250):  # keys that are split, too
        single = logits(slice(0, 1), past, [1] * 16)
        for parts in ([2] * 8, [3, 5, 7, 1], [8, 8]):
            np.testing.assert_array_equal(logits(slice(0, 1), past, parts), single)
        np.testing.assert_array_equal(logits(slice(0, 2), past, [1] * 16)[:1], single)


def test_padded_sequences_and_last_logits(tmp_path: Path) -> None:
    small(tmp_path / "model.gguf", "qwen2", ["f32"], layers=1)
    opened = open_model(tmp_path / "model.gguf")
    program = opened.program()
    program.compile(mgx_numba.get_target("cpu"))
    logits, _ = step(program, opened.config, IDS, lengths=[9, 4])
    alone, _ = step(program, opened.config, [IDS[1][:4]])
    np.testing.assert_allclose(logits[1, :4], alone[0], rtol=1e-4, atol=1e-4)
    last = opened.program(last_logits=True, positions=16)
    last.compile(mgx_numba.get_target("cpu"))
    np.testing.assert_allclose(
        step(last, opened.config, IDS)[0], step(program, opened.config, IDS)[0][:, -1:], 1e-4, 1e-4
    )


@pytest.mark.parametrize("name, bound, size", [("float16", 2e-3, 2), ("bfloat16", 2e-2, 2), ("float8", 0.15, 1)])
def test_caches_hold_keys_and_values_in_fewer_bits(tmp_path: Path, name: str, bound: float, size: int) -> None:
    small(tmp_path / "model.gguf", "qwen2", ["f32"], layers=1)
    found = []
    for kind in ("float32", name):
        model = LanguageModel(tmp_path / "model.gguf", cache_type=kind, num_threads=1)
        engine = DecoderBatch(model.decoder, 2, True)
        found.append(np.concatenate([engine.step(np.array(IDS)[:, part]) for part in (slice(5), slice(5, 6))], axis=1))
    assert {cache.dtype.itemsize for cache in model.decoder.caches} == {size}
    assert 0 < np.abs(found[1] - found[0]).max() < bound * np.abs(found[0]).max()


def test_a_type_of_caches_that_does_not_exist(tmp_path: Path) -> None:
    small(tmp_path / "model.gguf", "qwen2", ["f32"], layers=1)
    with pytest.raises(OptionError, match="cache_type is 'int3', expected one of float32, float16, bfloat16, float8"):
        LanguageModel(tmp_path / "model.gguf", cache_type="int3")


def test_what_a_file_tells(tmp_path: Path) -> None:
    small(tmp_path / "model.gguf", "gemma3", ["q8_0"], **{"rope.freq_base": 1e6, "attention.sliding_window": 7})
    opened = open_model(tmp_path / "model.gguf")
    c = opened.config
    assert (c.layers, c.hidden, c.heads, c.key_heads, c.head_size, c.vocabulary) == (2, HIDDEN, 4, 2, 64, WORDS)
    assert c.eos_ids == (2,) and c.bos_id == 1 and c.context_length == 64 and c.windows == (7, 7)
    assert c.ropes[0].theta == 10000 and c.embedding_scale == HIDDEN**0.5
    assert opened.chat_template == "{{ messages }}"
    assert opened.tokenizer_source.metadata["tokenizer.ggml.tokens"][3] == "<3>"
    assert opened.program().get_parameter_names()[:3] == ["input_ids", "attention_mask", "past_key_values.0.key"]
    assert opened.program().get_output_names()[:3] == ["logits", "present.0.key", "present.0.value"]


@pytest.mark.parametrize("odd", ["", "é" * 127 + "x", "long " * 60, "a\0b", "end\0", "\0" * 9, "日本語"])
def test_arrays_of_strings_of_any_length(tmp_path: Path, odd: str) -> None:
    words = [f"wörd{i}" for i in range(300)]
    for at in (0, 150, 300):
        wanted = [*words[:at], odd, *words[at:]]
        write_gguf(tmp_path / "m.gguf", {"words": wanted, "next": 7}, {})
        found = GgufFile(tmp_path / "m.gguf").metadata
        assert found["words"] == wanted and found["next"] == 7


def test_strings_that_are_no_utf8_are_replaced_each_alone(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"words": ["ab??", "?b", "cd"]}, {})
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data.replace(b"b??", b"b\xe2\x82").replace(b"?b", b"\xacb"))
    assert GgufFile(tmp_path / "m.gguf").metadata["words"] == ["ab\ufffd", "\ufffdb", "cd"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("block_count", 1 << 31, "block_count is 2147483648"),
        ("block_count", 0, "block_count is 0"),
        ("context_length", 1 << 31, "context_length is"),
        ("embedding_length", 128, r"table of embeddings is \[90, 256\], expected rows of 128"),
        ("attention.head_count", -1.5, "head_count is -1.5"),
        ("attention.head_count", 3, "2 key heads .* 3 heads"),
        ("attention.key_length", 32, "queries of layer 0 have 256 features"),
    ],
)
def test_lengths_that_contradict_the_tensors_are_named(tmp_path: Path, key: str, value: Any, said: str) -> None:
    small(tmp_path / "m.gguf", "llama", ["f32"], 1, **{key: value})
    with pytest.raises(FormatError, match=said):
        opened = open_model(tmp_path / "m.gguf")
        build_decoder(opened.architecture, opened.config, opened.source, True)


def _described(whole: bytes, name: str) -> int:
    """Return the place behind a tensor's name, where its number of axes and its lengths are."""
    return whole.rindex(name.encode(), 0, whole.rindex(b"output.weight") + 20) + len(name)


@pytest.mark.parametrize(
    ("name", "offset", "value", "said"),
    [
        ("blk.0.attn_q.weight", 4, 0, r"tensor 'blk\.0\.attn_q\.weight' has lengths \[256, 0\]"),
        ("blk.0.attn_q.weight", 4, 100, r"attn_q\.weight': a row of 100 weights is not a whole number of blocks of 32"),
        ("blk.0.attn_q.weight", 12, 0, r"attn_q\.weight' has lengths \[0, 256\]"),
        ("blk.0.attn_norm.weight", 4, 128, r"attn_norm\.weight has lengths \[128\], expected \[256\]"),
        ("output.weight", 4, 128, r"output\.weight is \[90, 128\], expected rows of 256"),
        ("blk.0.ffn_up.weight", 20, 39, r"ffn_up\.weight' has ggml's type number 39; supported are F32"),
    ],
)
def test_lengths_and_types_of_tensors_that_do_not_fit_are_named(
    tmp_path: Path, name: str, offset: int, value: int, said: str
) -> None:
    path = tmp_path / "model.gguf"
    small(path, "llama", ["q4_0"], layers=1)
    whole = bytearray(path.read_bytes())
    at = _described(bytes(whole), name) + offset
    whole[at : at + 4] = value.to_bytes(4, "little")
    path.write_bytes(whole)
    with pytest.raises((FormatError, UnsupportedError), match=said):
        open_model(path).program()


def test_another_file_of_the_same_name_is_another_model(tmp_path: Path) -> None:
    """Plans are cached by content; a program is decoded from the file's content when it was opened."""
    path, found = tmp_path / "model.gguf", []
    for kinds in (["f32"], ["f32", "f32"]):  # other random weights
        small(path, "qwen2", kinds, layers=1)
        for _ in range(2):
            opened = open_model(path)
            program = opened.program()
            program.compile(mgx_numba.get_target("cpu"))
            logits, _ = step(program, opened.config, IDS)
            np.testing.assert_allclose(logits[0], logits_of(opened, IDS[0]), rtol=1e-3, atol=1e-3)
            assert "matmul" in str(program) or "dot" in str(program)
        found.append(logits)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    small(tmp_path / "model.gguf", "llama", ["q4_0"], layers=1)
    file = GgufFile(tmp_path / "model.gguf")
    a, b = (file.weight("blk.0.attn_q.weight").array for _ in range(2))
    assert np.shares_memory(a, b) and not a.flags.owndata


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    small(path, "llama", ["q4_0"], layers=1)
    whole = path.read_bytes()
    for cut in (0, 3, 20, 100, 700):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError):
            open_model(path)
    path.write_bytes(whole[:-2000])
    with pytest.raises(FormatError, match="ends at byte"):
        open_model(path).program()
    path.write_bytes(whole[: whole.rindex(b"output.weight") + 100])
    with pytest.raises(FormatError, match=r"gguf: tensor 'token_embd\.weight' ends at byte"):
        open_model(path)
    path.write_bytes(whole.replace(b"llama.block_count", b"llama.block_counx"))
    with pytest.raises(FormatError, match=r"metadata of a llama model lack llama\.block_count"):
        open_model(path)
    path.write_bytes(whole.replace(b"general.architecture", b"general.architectuxe"))
    with pytest.raises(UnsupportedError, match="architecture ''"):
        open_model(path)
    path.write_bytes(whole.replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(FormatError, match=r"blk\.0\.attn_k\.weight"):
        open_model(path).program()
    with pytest.raises(FormatError, match="no file or folder"):
        open_model(tmp_path / "absent.gguf")
