"""Every architecture: prompts of unequal lengths in one batch continue as each prompt alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mgx_numba.llm import Generator, GeneratorParams, Model
from mgx_numba.llm.generation.engine import DecoderBatch

from .families import NAMES, write_family

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [14, 4], [22]]
STEPS = 6


def texts_of(model: Model, rows: np.ndarray) -> list[list[int]]:
    params = GeneratorParams(model)
    params.set_search_options(batch_size=len(rows), max_length=rows.shape[1] + STEPS, ignore_eos=True)
    generator = Generator(model, params)
    generator.append_tokens(rows)
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(k)[-STEPS:].tolist() for k in range(len(rows))]


@pytest.mark.parametrize("name", NAMES)
def test_unequal_prompts_of_a_batch_continue_as_alone(name: str, tmp_path: Path) -> None:
    model = Model(write_family(name, tmp_path), num_threads=1)
    longest = max(map(len, PROMPTS))
    alone = [texts_of(model, np.array([prompt]))[0] for prompt in PROMPTS]
    assert len(set(map(tuple, alone))) == len(PROMPTS)
    for left in (False, True):
        pads = [[0] * (longest - len(prompt)) for prompt in PROMPTS]
        rows = [pad + prompt if left else prompt + pad for prompt, pad in zip(PROMPTS, pads, strict=True)]
        assert texts_of(model, np.array(rows)) == alone


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_padded_rows_of_one_step_have_the_positions_of_their_own_tokens(name: str, tmp_path: Path) -> None:
    decoder = Model(write_family(name, tmp_path), num_threads=1).whole_decoder
    rng = np.random.default_rng(0)
    lengths = [7, 3, 1]
    ids = rng.integers(3, 60, (3, 7))

    def run(ids: np.ndarray, ends: list[int], caches: dict[str, np.ndarray]) -> np.ndarray:
        total = max(ends)
        mask = (np.arange(total) < np.array(ends)[:, None]).astype(np.int64)
        outputs = {cache.present: caches[cache.name] for cache in decoder.caches}
        return np.array(decoder.program.run({"input_ids": ids, "attention_mask": mask, **caches}, outputs)[0])

    caches = {c.name: np.zeros((3, c.heads, 16, c.size), np.float32) for c in decoder.caches}
    first = run(ids, lengths, caches)
    following = rng.integers(3, 60, (3, 2))
    second = run(following, [n + 2 for n in lengths], caches)
    for row, length in enumerate(lengths):
        engine = DecoderBatch(decoder, 1, True)
        wanted = engine.step(np.concatenate([ids[row, :length], following[row]])[None])[0]
        np.testing.assert_allclose(first[row, :length], wanted[:length], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(second[row], wanted[length:], rtol=1e-4, atol=1e-4)
