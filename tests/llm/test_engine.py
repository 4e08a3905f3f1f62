"""Caches that the native call of a plan updates in place, and `DecoderBatch`'s operations on batches."""

import numpy as np
import pytest

from mgx_numba.errors import MgxError
from mgx_numba.llm.generation.engine import DecoderBatch
from mgx_numba.llm.model import LanguageModel
from tests.interpreter.engine import interpreted
from tests.llm.tiny import HEADS, KINDS, SIZE, tiny, write

PAIRS = {"present.0.key": "past_key_values.0.key", "present.0.value": "past_key_values.0.value"}


def inputs(past=3, count=2, room=12, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {"input_ids": rng.integers(4, 50, (1, count)), "attention_mask": np.ones((1, past + count), np.int64)}
    for name in PAIRS.values():
        feeds[name] = rng.standard_normal((1, HEADS, room, SIZE)).astype(np.float32)
    return feeds


def test_a_native_call_updates_caches_in_place(compiled):
    program = compiled["grouped"][1].decoder.program
    for seed in range(3):  # the first call may take the general path
        feeds = inputs(seed=seed)
        wanted = [np.array(r) for r in program.run({k: v.copy() for k, v in feeds.items()})]
        before = {name: feeds[past].copy() for name, past in PAIRS.items()}
        found = program.run(feeds, {name: feeds[past] for name, past in PAIRS.items()})
        for k, (name, past) in enumerate(PAIRS.items(), 1):
            assert found[k] is feeds[past]
            np.testing.assert_array_equal(feeds[past], wanted[k])
            np.testing.assert_array_equal(feeds[past][:, :, :3], before[name][:, :, :3])
            assert (feeds[past][:, :, 3:5] != before[name][:, :, 3:5]).all()
        np.testing.assert_array_equal(found[0], wanted[0])


def test_a_head_size_that_the_model_leaves_open_needs_no_plan_for_each_length(compiled):
    program = compiled["grouped"][1].decoder.program
    for past, count in ((3, 2), (4, 1), (9, 3)):
        program.run(inputs(past, count))
    assert len(program.open_plans()) == 1


def overlapping():
    memory = np.random.default_rng(1).standard_normal((1, HEADS, 13, SIZE)).astype(np.float32).ravel()
    size = HEADS * 12 * SIZE
    return memory[:size].reshape(1, HEADS, 12, SIZE), memory[SIZE : SIZE + size].reshape(1, HEADS, 12, SIZE)


@pytest.mark.parametrize("case", ["one array for both", "overlapping arrays", "other memory", "swapped", "a view"])
def test_memory_that_cannot_be_updated_in_place_gets_right_results(compiled, case):
    program = compiled["grouped"][1].decoder.program
    key, value = PAIRS.values()
    feeds = inputs()
    outputs = {name: feeds[past] for name, past in PAIRS.items()}
    if case == "one array for both":
        feeds[value] = feeds[key]
    elif case == "overlapping arrays":
        feeds[key], feeds[value] = overlapping()
    elif case == "other memory":
        outputs = {name: np.full_like(feeds[past], np.nan) for name, past in PAIRS.items()}
    elif case == "swapped":
        outputs = {"present.0.key": feeds[value], "present.0.value": feeds[key]}
    else:
        outputs["present.0.key"] = feeds[key][:]
    if case in ("one array for both", "overlapping arrays"):  # results go to fresh memory: both cannot have their own
        outputs = {"present.0.key": feeds[key]}
    wanted = [np.array(r) for r in program.run({k: v.copy() for k, v in feeds.items()})]
    found = program.run(feeds, outputs)
    for k, name in enumerate(PAIRS, 1):
        np.testing.assert_array_equal(found[k], wanted[k])
        if name in outputs:
            np.testing.assert_array_equal(outputs[name], wanted[k])
    np.testing.assert_array_equal(found[0], wanted[0])


def test_read_only_memory_is_named(compiled):
    program = compiled["grouped"][1].decoder.program
    feeds = inputs()
    feeds["past_key_values.0.key"].flags.writeable = False
    with pytest.raises(MgxError, match=r"present\.0\.key.*read-only"):
        program.run(feeds, {"present.0.key": feeds["past_key_values.0.key"]})


@pytest.mark.parametrize("kind,shared", [("plain", False), ("grouped", False), ("grouped", True)])
def test_random_joins_selections_and_snapshots_keep_every_sequence(compiled, kind, shared):
    weights, model = compiled[kind]
    rng = np.random.default_rng(8)

    def fresh(tokens):
        engine = DecoderBatch(model.decoder, 1, shared)
        engine.prefill(np.array([tokens]), int(rng.integers(0, 4)))
        return engine

    for _ in range(6):
        texts = [rng.integers(4, 50, rng.integers(1, 9)).tolist()]
        engine = fresh(texts[0])
        for _ in range(9):
            action = rng.integers(4)
            if action == 0 and len(texts) < 5:
                texts.append(rng.integers(4, 50, rng.integers(1, 70)).tolist())
                engine.join(fresh(texts[-1]))
            elif action == 1:
                rows = rng.integers(0, len(texts), rng.integers(1, 5))
                texts = [list(texts[row]) for row in rows]
                engine.select(rows)
            elif action == 2:
                row = int(rng.integers(len(texts)))
                length = int(rng.integers(1, len(texts[row]) + 1))
                snapshot = engine.snapshot(length, row)
                texts, engine = [texts[row][:length]], DecoderBatch(model.decoder, 1, shared)
                engine.restore(snapshot, length)
            following = rng.integers(4, 50, (len(texts), 1))
            logits = engine.step(following)[:, -1]
            for text, token, row in zip(texts, following[:, 0].tolist(), logits, strict=True):
                text.append(token)
                np.testing.assert_allclose(row, weights.logits(text)[-1], rtol=2e-4, atol=2e-4)
            assert engine.lengths.tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_caches_stay_on_the_device_between_steps(kind, tmp_path):
    decoder, shared = tiny(kind, vocabulary=32), kind == "grouped"
    folder = write(decoder, tmp_path / kind)
    with interpreted():
        model = LanguageModel(folder, target="gpu")
        engine = DecoderBatch(model.decoder, 1, shared)
        tokens = [7, 9, 4, 5, 30, 8]
        engine.step(np.array([tokens[:3]]))
        places = set()
        for k in range(3, 5):
            logits = engine.step(np.array([tokens[k : k + 1]]))
            np.testing.assert_allclose(logits[0, -1], decoder.logits(tokens[: k + 1])[-1], atol=2e-4)
            places.add(tuple(each.data_ptr() for each in engine._memory._there))
        assert places and (len(places) == 1) == shared
        other = DecoderBatch(model.decoder, 1, shared)
        other.step(np.array([[6, 3]]))
        engine.join(other)
        logits = engine.step(np.array([[2], [11]]))
        for row, text in enumerate(([*tokens[:5], 2], [6, 3, 11])):
            np.testing.assert_allclose(logits[row, -1], decoder.logits(text)[-1], atol=2e-4)
