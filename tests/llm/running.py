"""Runs of a decoder's program, with the caches that it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgx_numba.llm.config import ModelConfig


def step(
    program: Any, config: ModelConfig, ids: Any, past: list[np.ndarray] | None = None, lengths: list[int] | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the logits and the caches after tokens [batch, sequence]; ``lengths`` are those of padded sequences."""
    ids = np.asarray(ids, np.int64)
    batch, count = ids.shape
    before = 0 if past is None else past[0].shape[2]
    ends = np.full(batch, before + count) if lengths is None else np.array(lengths)
    mask = (np.arange(before + count) < ends[:, None]).astype(np.int64)
    empty = np.zeros((batch, config.key_heads, 0, config.head_size), np.float32)
    caches = {
        f"past_key_values.{i}.{what}": empty if past is None else past[2 * i + k]
        for i in range(config.layers)
        for k, what in enumerate(("key", "value"))
    }
    logits, *present = map(np.array, program.run({"input_ids": ids, "attention_mask": mask, **caches}))
    return logits, present
