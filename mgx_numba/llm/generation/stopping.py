"""`TextStream`: the text of a sequence as it grows, up to a stop string."""

from __future__ import annotations

from collections.abc import Iterable

from ..tokenizer import Tokenizer


class TextStream:
    """Turns tokens into pieces of text that are final: no later token changes them, and no stop string begins in them.

    Attributes:
        stopped: whether a stop string was met; the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.create_stream()
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def again(self) -> TextStream:
        """Return a new stream, without text, with the same stop strings."""
        return TextStream(self._tokenizer, self._stops)

    def add(self, token: int) -> str:
        """Return the text that is final with one more token."""
        return "" if self.stopped else self._final(self._stream.decode(token))

    def finish(self) -> str:
        """Return the text that was held back, at the end of the sequence."""
        if self.stopped:
            return ""
        found = self._final(self._stream.finish()) + self._held
        self._held = ""
        return found

    def _final(self, more: str) -> str:
        self._held += more
        places = [place for place in map(self._held.find, self._stops) if place >= 0]
        if places:
            self.stopped = True
            found, self._held = self._held[: min(places)], ""
            return found
        held = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        end = len(self._held) - held
        found, self._held = self._held[:end], self._held[end:]
        return found


def _overlap(text: str, stop: str) -> int:
    """Return the number of last characters of ``text`` that are the first of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
