"""`Metrics`: counters of a server in Prometheus' text format."""

from __future__ import annotations

import threading
import time
from collections import Counter

_PREFIX = "mgx_llm_"
_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds (s) of the histograms' buckets, as Prometheus' clients have them, and longer ones."""


class _Histogram:
    """Counts of durations up to each bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        place = next((k for k, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        self.counts[place] += 1
        self.sum += seconds

    def lines(self, name: str, text: str) -> list[str]:
        found = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*found, f"{name}_sum {self.sum:.6f}", f"{name}_count {total}"]


class Metrics:
    """Counters of a scheduler; only its thread changes them, except ``refused``."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.steps = 0
        self.batched = 0
        self.refused = 0
        self._ended: Counter[str] = Counter()
        self._first, self._whole = _Histogram(), _Histogram()
        self._lock = threading.Lock()

    def started(self, arrived: float) -> None:
        """Record the first token of a request that arrived at a time of ``time.monotonic``."""
        with self._lock:
            self._first.add(time.monotonic() - arrived)

    def ended(self, reason: str, arrived: float) -> None:
        """Record the end of a request: ``stop``, ``length``, ``error`` or ``cancelled``."""
        with self._lock:
            self._ended[reason] += 1
            self._whole.add(time.monotonic() - arrived)

    def text(self, waiting: int, running: int, hits: int, reused: int) -> str:
        """Return all metrics in Prometheus' text form.

        Args:
            waiting, running: numbers of requests now.
            hits, reused: prompts with a known beginning, and tokens of these beginnings.
        """
        lines = []
        for name, kind, text, value in (
            ("requests_waiting", "gauge", "Requests in the queue.", waiting),
            ("requests_running", "gauge", "Requests that are computed.", running),
            ("requests_refused_total", "counter", "Requests refused because the queue was full.", self.refused),
            ("prompt_tokens_total", "counter", "Tokens of prompts that were computed.", self.prompt_tokens),
            ("prefix_hits_total", "counter", "Prompts with a known beginning.", hits),
            ("prefix_tokens_total", "counter", "Tokens of known beginnings.", reused),
            ("generated_tokens_total", "counter", "Generated tokens.", self.generated_tokens),
            ("steps_total", "counter", "Steps of the batch.", self.steps),
            ("batched_sequences_total", "counter", "Sequences of all steps of the batch.", self.batched),
        ):
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}", f"{_PREFIX}{name} {value}"]
        name = f"{_PREFIX}requests_total"
        with self._lock:
            lines += [f"# HELP {name} Requests that ended, by reason.", f"# TYPE {name} counter"]
            lines += [
                f'{name}{{reason="{reason}"}} {self._ended[reason]}'
                for reason in ("stop", "length", "error", "cancelled")
            ]
            lines += self._first.lines(f"{_PREFIX}first_token_seconds", "Time to the first token.")
            lines += self._whole.lines(f"{_PREFIX}request_seconds", "Time to the end of a request.")
        return "\n".join(lines) + "\n"
