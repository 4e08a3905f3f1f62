"""Greedy texts of a GGUF file beside llama.cpp's, and how far both engines are from float32.

    python -m bench.language_texts MODEL [--tokens N] [--windows N] [--threads N] [--json FILE]

Both engines round the rows of products with quantised weights to 8 bits, so their logits differ. The weights are also
written to a float32 file, on which neither engine rounds. The first table has a line for each prompt:

- ``f32``: the first token in which the two engines' texts of the float32 file differ; ``=`` if the texts are equal.
- ``ours``, ``theirs``: the first token in which an engine's text of the quantised file differs from llama.cpp's text of
  the float32 file.
- ``first``: the first token in which the two engines' texts of the quantised file differ. There all engines continue
  from the same tokens. ``gap`` is the logit of our token less that of llama.cpp's: in float32, ours, and llama.cpp's.
- ``noise``: the standard deviation of such a gap that rounding causes here: sqrt(2) times that of the differences of
  the logits from float32's, the larger of the two engines'.
- ``verdict``: ``equal``; ``rounding``, if float32's gap is at most `SIGMAS` noises; else ``WRONG``.

The second table compares both engines with float32 on the text of Python's documentation: the mean Kullback-Leibler
divergence from float32's distribution, the share of positions with the same likeliest token, and the perplexity.

Needs the packages ``llama-cpp-python`` and ``gguf``, and a temporary file of 4 bytes a weight.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mgx_numba.llm as own
from mgx_numba.llm.generation.engine import DecoderBatch

PROMPTS = (
    "Name three colours.", "What is the capital of France?", "Write a haiku about the sea.",
    "Explain gravity to a child.", "Translate 'good morning' to Spanish.", "How do magnets work?",
    "List five animals.", "Who wrote Hamlet?", "What is 12 times 12?", "Tell me a joke.", "Describe a sunset.",
    "What is photosynthesis?", "Give me a recipe for pancakes.", "Why is the sky blue?", "Define democracy.",
    "What is a prime number?", "Name a planet.", "How many days are in a year?", "Write a short poem on autumn.",
    "What does DNA stand for?",
)  # fmt: skip
SIGMAS = 3.0
"""A choice: a gap of normally distributed errors exceeds three standard deviations in 1 of 370 cases."""
WINDOW = 128
"""Tokens of a window of the documentation, each of which begins without a past. A choice: a chat's length."""

Step = Callable[[Sequence[int]], np.ndarray]
"""Takes the next tokens and returns logits (tokens, vocabulary) of the last token, or of all."""


class Own:
    """Our engine on a file, with the interface of `Peer`."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = own.Model(str(path), num_threads=threads)
        self.start()

    def start(self) -> None:
        """Forget all tokens."""
        self._batch = DecoderBatch(self.model.decoder, 1, True)

    def last(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits (vocabulary) after more tokens."""
        return np.array(self._batch.step(np.array([ids]))[0, -1])

    def all(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits (tokens, vocabulary) of a text."""
        return np.array(DecoderBatch(self.model.whole_decoder, 1, True).step(np.array([ids]))[0])


class Peer:
    """llama.cpp on a file; caches hold float32 if ``exact``, else its default, float16."""

    def __init__(self, path: Path, threads: int, context: int, exact: bool) -> None:
        import llama_cpp

        kinds = {"type_k": 0, "type_v": 0} if exact else {}
        self._model: Any = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            logits_all=True,
            **kinds,
        )

    def start(self) -> None:
        """Forget all tokens."""
        self._model.reset()

    def last(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits (vocabulary) after more tokens."""
        self._model.eval(list(ids))
        return np.array(self._model.scores[self._model.n_tokens - 1])

    def all(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits (tokens, vocabulary) of a text."""
        self.start()
        self._model.eval(list(ids))
        return np.array(self._model.scores[: len(ids)])


Engine = Own | Peer


def write_float32(path: Path, out: Path) -> None:
    """Write a GGUF file with dequantised weights."""
    import gguf

    read = gguf.GGUFReader(str(path))
    writer = gguf.GGUFWriter(str(out), read.fields["general.architecture"].contents())
    for field in read.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            kind, *inner = field.types
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner[-1] if inner else None)
    for tensor in read.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def greedy(engine: Engine, prompt: Sequence[int], tokens: int, ends: Sequence[int]) -> list[int]:
    """Return the likeliest tokens after a prompt, the token that ends the text included."""
    engine.start()
    logits, text = engine.last(prompt), list[int]()
    while len(text) < tokens:
        text.append(int(logits.argmax()))
        if text[-1] in ends:
            break
        logits = engine.last(text[-1:])
    return text


def after(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """Return the logits after a prompt, and tokens that follow it one by one."""
    engine.start()
    logits = engine.last(prompt)
    for token in text:
        logits = engine.last([token])
    return logits


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the position of the first different token, None for equal texts."""
    if list(a) == list(b):
        return None
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def compare_texts(engines: dict[str, Engine], tokens: int) -> list[dict[str, Any]]:
    """Return a row of the first table for each prompt; ``engines`` are ``ours`` and ``theirs``, and both in ``f32``."""
    ours = engines["ours"]
    assert isinstance(ours, Own)
    model, rows = ours.model, list[dict[str, Any]]()
    for question in PROMPTS:
        text = model.tokenizer.apply_chat_template([{"role": "user", "content": question}])
        prompt = model.tokenizer.encode(text).tolist()
        texts = {name: greedy(engine, prompt, tokens, model.eos_token_ids) for name, engine in engines.items()}
        exact = texts["theirs f32"]
        row: dict[str, Any] = {"prompt": question, "f32": first_difference(texts["ours f32"], exact)}
        row |= {name: first_difference(texts[name], exact) for name in ("ours", "theirs")}
        row["first"] = at = first_difference(texts["ours"], texts["theirs"])
        if at is not None:
            a, b = texts["ours"][at], texts["theirs"][at]
            shared = {name: after(engines[name], prompt, exact_text) for name, exact_text in (
                (name, texts["ours"][:at]) for name in ("theirs f32", "ours", "theirs"))}  # fmt: skip
            row["gap"] = [float(logits[a] - logits[b]) for logits in shared.values()]
            right = shared["theirs f32"]
            row["noise"] = math.sqrt(2) * max(float(np.std(shared[name] - right)) for name in ("ours", "theirs"))
            row["verdict"] = "rounding" if abs(row["gap"][0]) <= SIGMAS * row["noise"] else "WRONG"
        else:
            row["verdict"] = "equal"
        rows.append(row)
        gaps = "".join(f"{gap:9.3f}" for gap in row.get("gap", ())) or 27 * " "
        noise = f"{row['noise']:8.3f}" if "noise" in row else 8 * " "
        places = "".join(f"{'=' if row[n] is None else row[n]:>8}" for n in ("f32", "ours", "theirs", "first"))
        print(f"{question:38}{places}{gaps}{noise}  {row['verdict']}", flush=True)
    return rows


def compare_distributions(engines: dict[str, Engine], windows: int) -> dict[str, dict[str, float]]:
    """Return the second table: for each engine the divergence from float32, its agreement and its perplexity."""
    import pydoc_data.topics

    reference = engines["theirs f32"]
    ours = engines["ours"]
    assert isinstance(ours, Own)
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[key] for key in sorted(topics))[: 16 * WINDOW * windows]
    ids = ours.model.tokenizer.encode(text).tolist()
    found: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {name: [] for name in engines}
    for start in range(0, min(len(ids), WINDOW * windows) - WINDOW + 1, WINDOW):
        window = ids[start : start + WINDOW]
        right = _log_probabilities(reference.all(window))
        for name, engine in engines.items():
            logs = _log_probabilities(engine.all(window))
            losses = -logs[np.arange(WINDOW - 1), window[1:]]
            divergence = (np.exp(right) * (right - logs)).sum(-1)
            found[name].append((divergence, logs.argmax(-1) == right.argmax(-1), losses))
    table = {}
    for name, columns in found.items():
        divergence, same, losses = map(np.concatenate, zip(*columns))
        error = divergence.std() / math.sqrt(len(divergence))
        table[name] = {"divergence": float(divergence.mean()), "error": float(error), "same": float(same.mean())}
        table[name]["perplexity"] = math.exp(losses.mean())
    return table


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def main() -> int:
    """Compare both engines on a file and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of a text")
    parser.add_argument("--windows", type=int, default=16, help=f"windows of {WINDOW} tokens of the documentation")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    context = 256 + given.tokens
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "float32.gguf"
        write_float32(given.model, exact)
        engines: dict[str, Engine] = {
            "ours": Own(given.model, given.threads),
            "theirs": Peer(given.model, given.threads, context, False),
            "ours f32": Own(exact, given.threads),
            "theirs f32": Peer(exact, given.threads, context, True),
        }
        print(f"{'':38}{'f32':>8}{'ours':>8}{'theirs':>8}{'first':>8}{'gap':>9}{'ours':>9}{'theirs':>9}{'noise':>8}")
        rows = compare_texts(engines, given.tokens)
        for name in ("f32", "ours", "theirs", "first"):
            print(f"{name}: {sum(row[name] is None for row in rows)} of {len(rows)} texts equal")
        table = compare_distributions(engines, given.windows)
    print(f"\n{'':12}{'divergence':>12}{'+-':>10}{'same token':>12}{'perplexity':>12}")
    for name, row in table.items():
        print(f"{name:12}{row['divergence']:12.6f}{row['error']:10.6f}{row['same']:12.4f}{row['perplexity']:12.4f}")
    if given.json:
        given.json.write_text(json.dumps({"texts": rows, "distributions": table}))
    return int(any(row["verdict"] == "WRONG" or row["f32"] is not None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
