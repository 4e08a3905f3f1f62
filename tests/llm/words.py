"""A tokenizer of words ``t0`` to ``t49`` that needs no package."""

from __future__ import annotations

import numpy as np

from mgx_numba.llm.tokenizer import TokenizerStream
from tests.llm.tiny import VOCABULARY


class Words:
    """Token N is the text ``tN`` followed by a space."""

    has_chat_template = True

    def encode(self, text: str, *, add_special_tokens: bool | None = None) -> np.ndarray:
        return np.array([int(word[1:]) % VOCABULARY for word in text.split()], np.int32)

    def decode(self, tokens) -> str:
        return "".join(f"t{int(token)} " for token in tokens)

    def token_text(self, token: int) -> str:
        return self.decode([token])

    def create_stream(self) -> TokenizerStream:
        return TokenizerStream(self)

    def apply_chat_template(self, messages, *, tools=None, **variables) -> str:
        return "t1 " + " ".join(message["content"] for message in messages)
