"""Caches in blocks: texts that share a pool are computed as alone, and give their blocks back."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest

from mgx_numba.llm import SearchOptions
from mgx_numba.llm.generation.engine import DecoderBatch
from mgx_numba.llm.model import LanguageModel
from mgx_numba.llm.server.caches import CachedText, PagedCaches
from mgx_numba.llm.server.scheduler import Scheduler, TextRequest

from .test_gguf import WORDS, small
from .words import Words

BLOCK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> LanguageModel:
    """Return a model of two layers with a window of attention."""
    path = tmp_path_factory.mktemp("paged") / "model.gguf"
    small(path, "gemma3", ["f32"], **{"attention.sliding_window": 7})
    return LanguageModel(path, num_threads=1)


def alone(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    """Return the likeliest tokens after a prompt, computed with contiguous caches."""
    engine = DecoderBatch(model.decoder, 1, True)
    tokens, following = [], np.array([prompt])
    for _ in range(count):
        tokens.append(int(np.argmax(engine.step(following)[0, -1])))
        following = np.array([tokens[-1:]])
    return tokens


def test_steps_of_several_texts_give_the_logits_of_each_alone(model: LanguageModel) -> None:
    assert model.paged_decoder is not None
    caches = PagedCaches(model.paged_decoder, 1 << 20)
    rng = np.random.default_rng(0)
    texts = [CachedText(rng.integers(3, WORDS, n)) for n in (1, 15, 16, 17, 40)]
    engines = [DecoderBatch(model.decoder, 1, True) for _ in texts]
    for text, engine in zip(texts, engines, strict=True):
        assert caches.reuse(text) == 0
        for part in (text.prompt[:11], text.prompt[11:]):
            if len(part):
                found, wanted = caches.run([text], part[None]), engine.step(part[None])
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    for _ in range(18):
        ids = rng.integers(3, WORDS, (len(texts), 1))
        wanted = np.concatenate([e.step(row[None]) for e, row in zip(engines, ids, strict=True)])
        np.testing.assert_allclose(caches.run(texts, ids), wanted, rtol=1e-3, atol=1e-3)
    assert caches.used == sum(-(-len(text.tokens) // BLOCK) for text in texts)
    caches.end(texts)
    assert caches.used == 0


def test_texts_with_one_beginning_share_its_blocks(model: LanguageModel) -> None:
    assert model.paged_decoder is not None
    caches = PagedCaches(model.paged_decoder, 1 << 20)
    start = np.arange(3, 3 + 2 * BLOCK)
    texts = [CachedText(np.append(start, [k, 5])) for k in (60, 61, 62)]
    for k, text in enumerate(texts):
        assert caches.reuse(text) == (2 * BLOCK if k else 0)
        logits = caches.run([text], text.prompt[None, len(text.tokens) :])
        engine = DecoderBatch(model.decoder, 1, True)
        np.testing.assert_allclose(logits, engine.step(text.prompt[None]), rtol=1e-3, atol=1e-3)
    assert caches.used == 2 + len(texts) and (caches.hits, caches.reused) == (2, 4 * BLOCK)
    caches.end(texts)
    whole = CachedText(start)  # the last token is computed, for its logits
    assert caches.reuse(whole) == BLOCK
    other = CachedText(np.append(start[::-1], 5))
    assert caches.reuse(other) == 0


@pytest.mark.parametrize("idle", [0, 3])
def test_blocks_that_no_text_has_are_bounded(model: LanguageModel, idle: int) -> None:
    decoder = model.paged_decoder
    assert decoder is not None
    size = sum(c.dtype.itemsize * c.heads * c.size for c in decoder.caches) * BLOCK
    caches = PagedCaches(decoder, idle * size)
    for k in range(4):
        text = CachedText(np.arange(3, 60) + k)
        caches.run([text], text.prompt[None])
        caches.end([text])
        assert len(caches.idle) == idle and caches.used == 0
    assert len(caches.free) + idle == caches.count == 64
    again = CachedText(np.arange(3, 60) + 3)
    assert caches.reuse(again) == idle * BLOCK  # the beginning is kept longer than the end


def test_a_pool_grows_and_keeps_what_it_holds(model: LanguageModel) -> None:
    assert model.paged_decoder is not None
    caches = PagedCaches(model.paged_decoder, 0)
    first = CachedText(np.arange(3, 40))
    caches.run([first], first.prompt[None])
    others = [CachedText(np.arange(3, 60)) for _ in range(20)]
    for text in others:
        caches.run([text], text.prompt[None])
    assert caches.count == 128
    engine = DecoderBatch(model.decoder, 1, True)
    engine.step(first.prompt[None])
    np.testing.assert_allclose(caches.run([first], np.array([[7]])), engine.step(np.array([[7]])), rtol=1e-3, atol=1e-3)


def test_the_scheduler_answers_as_alone_and_gives_all_blocks_back(model: LanguageModel) -> None:
    scheduler = Scheduler(model, Words(), max_batch=4, chunk=9)
    rng = np.random.default_rng(1)
    beginning = rng.integers(3, WORDS, 33).tolist()
    requests, events = [], []
    for k in range(12):
        prompt = [*beginning[: 33 * (k % 3 > 0)], *rng.integers(3, WORDS, 1 + k).tolist()]
        events.append(queue.Queue())
        options = SearchOptions(max_length=64, ignore_eos=True)
        requests.append(TextRequest(np.array(prompt), options, 1 + k, events[-1].put))
    scheduler.submit(*requests)
    requests[7].cancel()
    for k, (request, queued) in enumerate(zip(requests, events, strict=True)):
        text = ""
        while k != 7:
            event = queued.get(timeout=60)
            text += event.text
            if event.finish_reason:
                break
        if k != 7:
            assert text == Words().decode(alone(model, request.tokens.tolist(), 1 + k))
    scheduler.close()
    assert isinstance(scheduler.caches, PagedCaches)
    assert scheduler.caches.used == 0 and scheduler.caches.reused > 0
