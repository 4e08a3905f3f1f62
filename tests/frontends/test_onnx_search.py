"""GreedySearch, Sampling, BeamSearch and NGramRepeatBlock against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import mgx_numba
from mgx_numba.errors import MgxError
from mgx_numba.targets.dynamic import OpenPlans

from .search_models import VOCABULARY, gpt, search, t5

PAD = VOCABULARY - 1
INPUTS = {
    "BeamSearch": "input_ids max_length min_length num_beams num_return_sequences length_penalty repetition_penalty "
    "vocab_mask prefix_vocab_mask attention_mask",
    "GreedySearch": "input_ids max_length min_length repetition_penalty vocab_mask prefix_vocab_mask attention_mask",
    "Sampling": "input_ids max_length min_length repetition_penalty vocab_mask prefix_vocab_mask attention_mask "
    "presence_mask seed",
}
IDS = np.array([[3, 4, 5], [PAD, 7, 2]], np.int32)
MASKS = {
    "vocab_mask": (np.arange(VOCABULARY) % 5 > 0).astype(np.int32),
    "prefix_vocab_mask": np.array([np.arange(VOCABULARY) % 3, np.arange(VOCABULARY) % 2], np.int32).clip(0, 1),
    "attention_mask": np.array([[0, 1, 1], [1, 1, 1]], np.int32),
}
BEAMS = {"min_length": 1, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.0, "repetition_penalty": 1.0}


def compared(
    kind: str, given: dict[str, Any], graphs: dict[str, Any], results: int = 1, target: str = "ref", **attributes: Any
) -> list[np.ndarray]:
    """Run a search with inputs (numbers become vectors of one element); return results that equal ONNX Runtime's."""
    feeds = feeds_of({"max_length": 10, **given})
    options = {"eos_token_id": 1, "pad_token_id": PAD, "opset": 17, **attributes}
    names = [n if n in feeds else "" for n in INPUTS[kind].split()]
    model = search(kind, graphs, names, feeds, results, open_lengths=target != "ref", **options).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    program = mgx_numba.parse_onnx_buffer(model)
    program.compile(mgx_numba.get_target(target))
    found = [np.asarray(x) for x in program.run(feeds)]
    assert_same(kind, found, wanted)
    return found


def feeds_of(given: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        n: v if isinstance(v, np.ndarray) else np.array([v], np.float32 if isinstance(v, float) else np.int32)
        for n, v in {"input_ids": IDS, **given}.items()
    }


def assert_same(kind: str, found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert found[0].shape == wanted[0].shape
    for ours, theirs in zip(found, wanted, strict=True):
        if kind == "BeamSearch":  # after the last step ONNX Runtime leaves scores as they were in memory
            ours, theirs = (x[~(found[-1] == 0).all((1, 2, 3))] if x.ndim == 4 else x for x in (ours, theirs))
        else:  # and columns of sequences, after the column in which the last sequence ends
            last = np.flatnonzero((ours != PAD).any(axis=0))[-1]
            ours, theirs = ours[:, : last + 2], theirs[:, : last + 2]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "given",
    [{}, {"min_length": 8}, {"repetition_penalty": 1.4, **MASKS}, {"input_ids": IDS[:1, 1:], "max_length": 3}],
    ids=["plain", "min_length", "masks", "one"],
)
@pytest.mark.parametrize("end", [1, 10])
def test_greedy_search_is_onnx_runtimes(given: dict[str, Any], end: int) -> None:
    compared("GreedySearch", given, {"decoder": gpt()}, eos_token_id=end)


def test_greedy_search_ends_early_and_pads() -> None:
    found = compared("GreedySearch", {"input_ids": IDS[1:]}, {"decoder": gpt()}, eos_token_id=10)[0]
    assert (found[0, 6:] == PAD).all()


@pytest.mark.parametrize("size", [1, 2, 3, 12])
def test_no_ngram_is_repeated(size: int) -> None:
    found = compared("GreedySearch", {"max_length": 12}, {"decoder": gpt()}, no_repeat_ngram_size=size)[0]
    for row in found:
        ngrams = [tuple(row[k : k + size]) for k in range(len(row) - size + 1)]
        assert size > 2 or len(set(ngrams)) == len(ngrams)


def test_the_first_step_may_have_a_decoder_of_its_own() -> None:
    compared("GreedySearch", {}, {"decoder": gpt(1), "init_decoder": gpt(0)})


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.filterwarnings("error")
def test_a_search_does_not_depend_on_the_operator_set(opset: int) -> None:
    graph = gpt()
    if opset < 13:  # axes of Unsqueeze are an attribute
        values = {t.name: t for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Unsqueeze":
                axes = np.frombuffer(values[node.input.pop()].raw_data, np.int64)
                node.attribute.append(helper.make_attribute("axes", axes.tolist()))
    given = {**BEAMS, "prefix_vocab_mask": MASKS["prefix_vocab_mask"]}
    compared("BeamSearch", given, {"decoder": graph}, 2, opset=opset, no_repeat_ngram_size=2)


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 1.0, "temperature": 5.0},
        {"top_p": 0.6, "temperature": 3.0, "filter_value": -3.0},
        {"top_p": 0.6, "temperature": 3.0, "custom": 1},
        {"top_p": 0.3, "temperature": 9.0, "min_tokens_to_keep": 4},
    ],
    ids=["all", "top_p", "custom", "kept"],
)
def test_sampling_draws_onnx_runtimes_tokens(options: dict[str, Any]) -> None:
    compared("Sampling", {"seed": 77}, {"decoder": gpt()}, **options)


def test_sampling_without_a_seed_draws_likely_tokens() -> None:
    feeds = {"input_ids": IDS, "max_length": np.array([10], np.int32)}
    model = search("Sampling", {"decoder": gpt()}, list(feeds), feeds, eos_token_id=1, pad_token_id=PAD, top_p=1e-6)
    program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    program.compile(mgx_numba.get_target("ref"))
    greedy = compared("GreedySearch", {}, {"decoder": gpt()})[0]
    np.testing.assert_array_equal(program.run(feeds)[0], greedy)  # top_p leaves the likeliest token alone


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("end", [4, 14])
@pytest.mark.parametrize(
    "given",
    [{}, {"num_beams": 1, "num_return_sequences": 1}, {"length_penalty": -1.0, "num_beams": 5}, MASKS],
    ids=["plain", "one", "short", "masks"],
)
def test_beam_search_is_onnx_runtimes(given: dict[str, Any], end: int, early: int) -> None:
    compared("BeamSearch", {**BEAMS, **given}, {"decoder": gpt()}, 3, eos_token_id=end, early_stopping=early)


@pytest.mark.parametrize(
    "hidden, every, older", [(True, False, True), (False, True, True), (False, False, False), (False, True, False)]
)
def test_beam_search_with_an_encoder(hidden: bool, every: bool, older: bool) -> None:
    graphs = dict(zip(("encoder", "decoder"), t5(0, hidden, every, older), strict=True))
    given = {**BEAMS, "repetition_penalty": 1.4, **(MASKS if every else {})}
    compared("BeamSearch", given, graphs, 2, model_type=1, decoder_start_token_id=2, eos_token_id=14)


def test_a_batch_entry_goes_on_while_others_may_improve_as_in_onnx_runtime() -> None:
    ids = np.array([[6, 12, 13], [6, 13, 5], [PAD, 6, 11]], np.int32)
    mask = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1]], np.int32)
    given = {"input_ids": ids, "attention_mask": mask, "max_length": 12, "min_length": 4, "length_penalty": 2.0}
    compared("BeamSearch", {**BEAMS, **given, "num_beams": 4}, {"decoder": gpt(89)}, 2, eos_token_id=5)


def test_scores_of_minus_infinity_are_no_free_places() -> None:
    given = {**BEAMS, "vocab_mask": MASKS["vocab_mask"], "max_length": 17}
    found = compared("BeamSearch", given, {"decoder": gpt()}, 2, no_repeat_ngram_size=1, eos_token_id=15)
    assert np.isneginf(found[1]).any() and (found[0][..., 3:] != PAD).any()


@pytest.mark.parametrize("kind", ["GreedySearch", "BeamSearch"])
def test_lengths_and_beams_that_are_known_at_run_time(kind: str) -> None:
    given = {n: v for n, v in BEAMS.items() if n in INPUTS[kind].split()}
    given |= {"max_length": 6, "repetition_penalty": 1.2}
    compared(kind, given, {"decoder": gpt()}, target="cpu", no_repeat_ngram_size=2)


@pytest.mark.parametrize("kind", ["GreedySearch", "BeamSearch", "T5"])
def test_each_prompt_of_another_length_had_a_plan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, options = {"decoder": gpt()}, {"eos_token_id": 14, "pad_token_id": PAD, "opset": 17}
    if kind == "T5":
        graphs = dict(zip(("encoder", "decoder"), t5(0, False, True, False), strict=True))
        kind, options = "BeamSearch", {**options, "model_type": 1, "decoder_start_token_id": 2}
    first = {"max_length": 10, **(BEAMS if kind == "BeamSearch" else {})}
    feeds = feeds_of(first)
    names = [n if n in feeds else "" for n in INPUTS[kind].split()]
    results = 2 if kind == "BeamSearch" else 1
    model = search(kind, graphs, names, feeds, results, open_lengths=True, **options).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    program = mgx_numba.parse_onnx_buffer(model)
    program.compile(mgx_numba.get_target("cpu"))
    program.run(feeds)
    made: list[object] = []
    original = OpenPlans.make_plan

    def make_plan(self: Any, *arguments: Any, **more: Any) -> Any:
        made.append(arguments)
        return original(self, *arguments, **more)

    monkeypatch.setattr(OpenPlans, "make_plan", make_plan)
    rng = np.random.default_rng(1)
    for rows, tokens, most, beams in ((3, 5, 12, 4), (1, 7, 9, 2), (4, 2, 13, 3), (2, 3, 7, 5)):
        given = {"input_ids": rng.integers(2, PAD - 1, (rows, tokens)).astype(np.int32), "max_length": most}
        given |= {"num_beams": beams, "num_return_sequences": beams - 1} if kind == "BeamSearch" else {}
        feeds = feeds_of({**first, **given})
        assert_same(kind, [np.asarray(x) for x in program.run(feeds)], session.run(None, feeds))
    assert not made


def test_ngram_repeat_block() -> None:
    rng = np.random.default_rng(0)
    ids, scores = rng.integers(0, 3, (4, 9)), rng.standard_normal((4, 5)).astype(np.float32)
    for size in (1, 2, 3, 9, 10):
        node = helper.make_node("NGramRepeatBlock", ["i", "s"], ["y"], domain="com.microsoft", ngram_size=size)
        infos = [helper.make_tensor_value_info(n, k, v.shape) for n, k, v in (("i", 7, ids), ("s", 1, scores))]
        graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        wanted = onnxruntime.InferenceSession(model).run(None, {"i": ids, "s": scores})[0]
        program = mgx_numba.parse_onnx_buffer(model)
        program.compile(mgx_numba.get_target("ref"))
        np.testing.assert_array_equal(program.run({"i": ids, "s": scores})[0], wanted)


@pytest.mark.parametrize(
    "kind, change, message",
    [
        ("GreedySearch", {"model_type": 1}, "model_type 0"),
        ("BeamSearch", {"model_type": 2}, "model_type is 2"),
        ("BeamSearch", {"model_type": 1, "encoder": "gpt"}, "decoder_start_token_id is missing"),
        ("BeamSearch", {"model_type": 1, "encoder": "gpt", "decoder_start_token_id": 2}, "the encoder's inputs are"),
        ("GreedySearch", {"decoder": "encoder"}, "the decoder's inputs are"),
        ("Sampling", {"presence_penalty": 1.0, "mask": True}, "presence_penalty is not supported"),
    ],
)
def test_a_search_says_what_is_wrong(kind: str, change: dict[str, Any], message: str) -> None:
    graphs = {"decoder": gpt(), "gpt": gpt(), "encoder": t5()[0]}
    change = {n: graphs[v] if isinstance(v, str) else v for n, v in change.items()}
    feeds = {"input_ids": IDS, **{n: np.array([v]) for n, v in {"max_length": 9, **BEAMS}.items()}}
    feeds = {n: v.astype(np.float32 if "penalty" in n else np.int32) for n, v in feeds.items()}
    if change.pop("mask", False):
        feeds["presence_mask"] = MASKS["prefix_vocab_mask"]
    decoder = change.pop("decoder", gpt())
    names = [n if n in feeds else "" for n in INPUTS[kind].split()]
    model = search(
        kind, {"decoder": decoder}, names, {n: feeds[n] for n in names if n}, eos_token_id=1, pad_token_id=PAD, **change
    )
    with pytest.raises(MgxError, match=message):
        mgx_numba.parse_onnx_buffer(model.SerializeToString())
