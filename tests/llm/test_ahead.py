"""Decoding on a device, interpreted: tokens are chosen there, and the next step is enqueued before they are read."""

import numpy as np
import pytest

from mgx_numba.api.placing import StandingCall
from mgx_numba.core.types import Type
from mgx_numba.llm import Generator, GeneratorParams
from mgx_numba.llm.cache_memory import DeviceBuffers, HostBuffers, on_host
from mgx_numba.llm.decoder import CacheTensor
from mgx_numba.llm.generation.ahead import StepsAhead, settings, token_choice
from mgx_numba.llm.generation.chooser import draw, likeliest
from mgx_numba.llm.generation.params import SearchOptions
from mgx_numba.llm.model import LanguageModel
from tests.interpreter.engine import InterpreterQueue, interpreted
from tests.llm.tiny import tiny, write

OPTIONS = [
    {}, {"temperature": 0.3}, {"top_p": 0.7}, {"top_p": 0.0}, {"min_p": 0.1}, {"temperature": 1e-6},
    {"top_p": 0.9, "min_p": 0.02, "temperature": 2.0},
]  # fmt: skip


def written(folder):
    """Return the folder of a decoder with few words: each is a column of a product on the interpreter."""
    return write(tiny("grouped", vocabulary=16), folder / "grouped", vocabulary=16)


def chosen(target, count, options, words, runs, rng):
    """Return tokens that a program chooses, and those of the host; the last run has a NaN and excluded tokens."""
    choice = token_choice(2, words, Type.float_type, count)
    choice.compile(target)
    found, wanted = [], []
    for run in range(runs + 1):
        logits = (rng.standard_normal((2, 1, words)) * 3).round(1).astype(np.float32)  # some are equal
        numbers = rng.random((2, 1))
        if run == runs:
            logits[0, 0, 5], logits[1] = np.nan, -np.inf
        more = {"number": numbers, "settings": settings(options)} if count > 1 else {}
        found += np.asarray(choice.run({"logits": logits, **more})[0]).ravel().tolist()
        for row, number in zip(logits[:, 0], numbers.ravel().tolist()):
            if run == runs:
                wanted.append(-1)
            else:
                wanted.append(draw(row, options, number) if count > 1 else likeliest(row))
    return found, wanted


def test_programs_choose_the_tokens_of_the_host():
    rng = np.random.default_rng(0)
    for options in OPTIONS:
        options = SearchOptions(do_sample=True, **{"top_k": 20, **options})
        for count in (1, 20):
            found, wanted = chosen("ref", count, options, 300, 30, rng)
            assert found == wanted


def test_a_device_chooses_the_tokens_of_the_host():
    options = SearchOptions(do_sample=True, top_k=6, top_p=0.9, min_p=0.01)
    with interpreted():
        for count in (1, 6):
            found, wanted = chosen("gpu", count, options, 40, 1, np.random.default_rng(1))
            assert found == wanted


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_caches_are_copied_on_a_device(seed):
    rng = np.random.default_rng(seed)
    caches = [CacheTensor("", "", 0, 2, 3, np.dtype(t)) for t in (np.float32, np.float16)]

    def filled(rows, columns):
        return [rng.standard_normal((rows, 2, columns, 3)).astype(c.dtype) for c in caches]

    with interpreted():
        host, device = HostBuffers(), DeviceBuffers(0)
        rows, columns = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        here = filled(rows, columns)
        there = [device.taken(each.copy()) for each in here]
        for _ in range(6):
            length = int(rng.integers(0, columns + 1))
            chosen = rng.integers(0, rows, int(rng.integers(0, rows + 1)))
            into = rng.permutation(rows)[: len(chosen)]
            host.copy(here, into, here, chosen, length)  # onto itself
            device.copy(there, into, there, chosen, length)
            pairs = [(a[into, :, :length], on_host(b)[into, :, :length]) for a, b in zip(here, there)]
            there = [device.taken(each.copy()) for each in here]  # columns behind may differ
            other = host.zeros(caches, rows + 1, columns + 5)
            longer = device.zeros(caches, rows + 1, columns + 5)
            host.copy(other, into + 1, here, chosen, length)
            device.copy(longer, into + 1, there, chosen, length)
            for wanted, found in [*pairs, *((a, on_host(b)) for a, b in zip(other, longer))]:
                np.testing.assert_array_equal(found, wanted)
            first = device.first(there[0], rows - 1)
            assert first.address == there[0].address and first.shape.lens[0] == rows - 1


def test_a_device_is_one_step_ahead_and_takes_it_back(tmp_path, monkeypatch):
    """Tokens are drawn on the device; after its logits were read the text goes on as on the host."""
    folder = written(tmp_path)
    order = []
    enqueue = StepsAhead._enqueue
    monkeypatch.setattr(StepsAhead, "_enqueue", lambda self, tokens: (order.append(1), enqueue(self, tokens))[1])
    texts = []
    with interpreted():
        for target in ("cpu", "gpu"):
            params = GeneratorParams(LanguageModel(folder, target=target))
            params.set_search_options(
                past_present_share_buffer=True, max_length=8, do_sample=True, top_k=8, random_seed=3, ignore_eos=True
            )
            generator = Generator(params.model, params)
            generator.append_tokens([5, 6, 7])
            counts = []
            for _ in range(3):
                generator.generate_next_token()
                counts.append(len(order))
            assert counts == ([0, 0, 0] if target == "cpu" else [0, 2, 3])
            logits = generator.get_logits()  # of the step that is ahead
            generator.generate_next_token()
            texts.append((generator.get_sequence(0).tolist(), logits))
    assert texts[0][0] == texts[1][0]
    np.testing.assert_allclose(texts[1][1], texts[0][1], rtol=1e-4, atol=1e-4)


def test_ties_and_infinities_of_greedy_search():
    """The first of equal logits is chosen, in a later part of a row, too; +inf is a logit like others, a NaN is not."""
    words = 300
    logits = np.full((7, 1, words), -1, np.float32)
    logits[0, 0, [299, 130, 131]] = 2
    logits[1] = -np.inf
    logits[2, 0, 250] = np.nan
    logits[3, 0, [260, 7]] = np.inf
    logits[4, 0, 299] = 0
    logits[5, 0, 3], logits[5, 0, 290] = np.inf, np.nan
    logits[6, 0, :] = -np.inf
    logits[6, 0, 222] = -5
    for target in ("ref", "gpu"):
        with interpreted():
            choice = token_choice(7, words, Type.float_type, 1)
            choice.compile(target)
            found = np.asarray(choice.run({"logits": logits})[0]).ravel().tolist()
        assert found == [130, -1, -1, 7, 299, -1, 222]


def test_a_step_is_one_recording_until_the_caches_grow(tmp_path, monkeypatch):
    """Rows of different lengths; after the first token no step is run from the host."""
    folder = written(tmp_path)
    monkeypatch.setattr("mgx_numba.llm.generation.engine._ROOM", 4)
    made, recorded = [], InterpreterQueue.recorded

    names, launch = [], InterpreterQueue.launch

    def launched(queue, function, words, geometry):
        if queue._recording is not None:
            names.append(function.name)
        launch(queue, function, words, geometry)

    def refuse(*args):
        raise AssertionError("a step ran from the host")

    texts = []
    with interpreted():
        for target in ("cpu", "gpu"):
            params = GeneratorParams(LanguageModel(folder, target=target))
            params.set_search_options(
                past_present_share_buffer=True, max_length=6, batch_size=2, ignore_eos=True, do_sample=True, top_k=5,
                random_seed=1,
            )  # fmt: skip
            generator = Generator(params.model, params)
            generator.append_tokens([[5, 6], [9, params.model.pad_token_id]])
            generator.generate_next_token()  # from the prompts' logits, on the host
            if target == "gpu":
                monkeypatch.setattr(InterpreterQueue, "recorded", lambda q, ask: (made.append(1), recorded(q, ask))[1])
                monkeypatch.setattr(StandingCall, "run", refuse)
                monkeypatch.setattr(InterpreterQueue, "launch", launched)
            while not generator.is_done():
                generator.generate_next_token()
            texts.append([generator.get_sequence(row).tolist() for row in range(2)])
    assert texts[0] == texts[1]
    assert len(made) == 2  # caches of 4 and 8 columns
    assert names.count("next_step_kernel") == 2
    assert any("attention_of_new_rows" in name for name in names)
    assert not any("cache_copy" in name for name in names)  # caches are updated in place


def test_the_host_chooses_if_it_takes_part_in_a_step(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setattr(StandingCall, "held", lambda self: None)
    texts = []
    with interpreted():
        for target in ("cpu", "gpu"):
            params = GeneratorParams(LanguageModel(folder, target=target))
            params.set_search_options(past_present_share_buffer=True, max_length=4, ignore_eos=True)
            generator = Generator(params.model, params)
            generator.append_tokens([5, 6])
            while not generator.is_done():
                generator.generate_next_token()
            texts.append(generator.get_sequence(0).tolist())
    assert texts[0] == texts[1]
