"""The JSON objects of answers, as OpenAI's interface has them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from ..generation.logprobs import TokenLogprob
from ..tokenizer import Tokenizer

Logprobs = Sequence[TokenLogprob] | None

_LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have, as OpenAI documents it."""


class AnswerForm:
    """The objects of one answer."""

    prefix, whole, chunk = "", "", ""
    """Beginning of the answer's id, and names of the objects of whole and streamed answers."""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._text = tokenizer.token_text

    def base(self, whole: bool = False) -> dict[str, object]:
        """Return the fields that all objects of an answer have."""
        return {**self._head, "object": self.whole if whole else self.chunk}

    def first(self, index: int, text: str) -> list[dict[str, object]]:
        """Return the chunks before the first piece of a choice; ``text`` is the prompt of an echo."""
        raise NotImplementedError

    def piece(self, index: int, text: str, logprobs: Logprobs = None) -> dict[str, object]:
        """Return the chunk of a piece of text."""
        raise NotImplementedError

    def end(self, index: int, reason: str) -> dict[str, object]:
        """Return the last chunk of a choice."""
        raise NotImplementedError

    def choice(self, index: int, text: str, reason: str | None, logprobs: Logprobs = None) -> dict[str, object]:
        """Return a choice of a whole answer."""
        raise NotImplementedError


class ChatForm(AnswerForm):
    """The objects of ``/v1/chat/completions``."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, index: int, text: str) -> list[dict[str, object]]:
        """Return the chunk that names the role."""
        return [self._delta(index, {"role": "assistant", "content": ""}, None)]

    def piece(self, index: int, text: str, logprobs: Logprobs = None) -> dict[str, object]:
        """Return the chunk of a piece of text."""
        return self._delta(index, {"content": text}, None, logprobs)

    def end(self, index: int, reason: str) -> dict[str, object]:
        """Return the last chunk of a choice."""
        return self._delta(index, {}, reason)

    def choice(self, index: int, text: str, reason: str | None, logprobs: Logprobs = None) -> dict[str, object]:
        """Return a choice of a whole answer."""
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": self._logprobs(logprobs), "finish_reason": reason}

    def _delta(
        self, index: int, delta: dict[str, object], reason: str | None, logprobs: Logprobs = None
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": self._logprobs(logprobs), "finish_reason": reason}
        return {**self.base(), "choices": [choice]}

    def _logprobs(self, logprobs: Logprobs) -> dict[str, object] | None:
        if logprobs is None:
            return None
        content = [
            {**self._entry(found.token, found.logprob), "top_logprobs": [self._entry(*each) for each in found.top]}
            for found in logprobs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, object]:
        text = self._text(token)
        # A part of a character has no text; OpenAI's interface admits null for its bytes.
        return {
            "token": text,
            "logprob": max(logprob, _LEAST),
            "bytes": None if "\ufffd" in text else list(text.encode()),
        }


class CompletionForm(AnswerForm):
    """The objects of ``/v1/completions``."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(model, tokenizer)
        self._offsets: dict[int, int] = {}  # characters of the tokens of each choice so far

    def first(self, index: int, text: str) -> list[dict[str, object]]:
        """Return the chunk of the prompt, if the request asks for an echo."""
        return [self.piece(index, text)] if text else []

    def piece(self, index: int, text: str, logprobs: Logprobs = None) -> dict[str, object]:
        """Return the chunk of a piece of text."""
        return {**self.base(), "choices": [self.choice(index, text, None, logprobs)]}

    def end(self, index: int, reason: str) -> dict[str, object]:
        """Return the last chunk of a choice."""
        return {**self.base(), "choices": [self.choice(index, "", reason)]}

    def choice(self, index: int, text: str, reason: str | None, logprobs: Logprobs = None) -> dict[str, object]:
        """Return a choice of a whole answer."""
        return {"index": index, "text": text, "logprobs": self._logprobs(index, logprobs), "finish_reason": reason}

    def _logprobs(self, index: int, logprobs: Logprobs) -> dict[str, object] | None:
        if logprobs is None:
            return None
        tokens, offsets = [self._text(found.token) for found in logprobs], []
        for text in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [max(found.logprob, _LEAST) for found in logprobs],
            "top_logprobs": [
                {self._text(token): max(value, _LEAST) for token, value in found.top} for found in logprobs
            ],
            "text_offset": offsets,
        }
