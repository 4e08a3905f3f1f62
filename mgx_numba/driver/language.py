"""Language models in the driver: flags, loading, and rates of prefill and decoding."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from ..dataclass import dataclass
from ..errors import OptionError

if TYPE_CHECKING:
    from ..llm import Model


@dataclass(frozen=True)
class LanguageRate:
    """The rate of one test: ``pp`` is the processing of a prompt, ``tg`` the generation of tokens.

    Attributes:
        rates: tokens per second of each repetition, of all sequences together.
        steps: steps of the model per second, in the median.
    """

    test: str
    batch: int
    rates: tuple[float, ...]
    steps: float


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model and the flags of its compilation."""
    parser.add_argument("model", help="folder of onnxruntime-genai or of transformers, or a GGUF file")
    add_machine(parser)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a language model's compilation."""
    parser.add_argument("--target", metavar="NAME", help="cpu or gpu (default: as the folder says, else cpu)")
    parser.add_argument(
        "--num-threads", type=int, default=0, metavar="N", help="threads of the target cpu (default all)"
    )
    add_cache_type(parser)


def add_cache_type(parser: argparse._ActionsContainer) -> None:
    """Add the flag of the element type of caches."""
    parser.add_argument(
        "--cache-type",
        default="float32",
        metavar="NAME",
        help="elements of key and value caches: float32 (default), float16, bfloat16, float8",
    )


def load_language_model(args: argparse.Namespace) -> Model:
    """Read and compile the model that the flags name."""
    from ..llm import Model

    return Model(args.model, target=args.target, num_threads=args.num_threads, cache_type=args.cache_type)


def measure_language_model(
    model: Model, prompt: int, tokens: int, batches: list[int], repeats: int
) -> list[LanguageRate]:
    """Measure the processing of prompts and the generation of tokens, as llama-bench does.

    Args:
        prompt: tokens of a prompt; 0 measures no prompts.
        tokens: tokens to generate after a sequence of one token; 0 measures no generation.
        batches: numbers of sequences.
        repeats: measured repetitions, after one that is not measured.

    Raises:
        OptionError: the model has no room for so many tokens.
    """
    if not prompt and not tokens:
        raise OptionError("nothing to measure: --prompt and --tokens are 0")
    if min(prompt, tokens) < 0 or max(prompt, tokens + 1) > model.context_length:
        raise OptionError(
            f"--prompt {prompt}, --tokens {tokens}: expected numbers from 0 on, and at most the model's context length "
            f"{model.context_length}"
        )
    from ..llm.generation.engine import DecoderBatch

    random = np.random.default_rng(0)
    results = []
    for batch in batches:
        ids = random.integers(0, model.vocab_size, (batch, max(prompt, 1)))

        def process() -> None:
            DecoderBatch(model.decoder, batch, model.shares_buffer).step(ids)  # noqa: B023

        def generate() -> None:
            engine = DecoderBatch(model.decoder, batch, model.shares_buffer)  # noqa: B023
            following = ids[:, :1]  # noqa: B023
            for _ in range(tokens):
                following = np.argmax(engine.step(following)[:, -1:], axis=-1)

        if prompt:
            seconds = _timed(process, repeats)
            rates = tuple(batch * prompt / s for s in seconds)
            results.append(LanguageRate(f"pp{prompt}", batch, rates, 1 / statistics.median(seconds)))
        if tokens:
            seconds = _timed(generate, repeats)
            rates = tuple(batch * tokens / s for s in seconds)
            results.append(LanguageRate(f"tg{tokens}", batch, rates, tokens / statistics.median(seconds)))
    return results


def write_rates(model: Model, rates: list[LanguageRate], bandwidth: float | None) -> None:
    """Print a table with a row for each test.

    Args:
        bandwidth: bytes that the machine reads and writes per second in a copy, None if it is not known. A step of
            generation reads all weights once, which gives the fraction of it.
    """
    size = model.weight_bytes
    rows = [("model", "size", "test", "batch", "tokens/s", "of bandwidth")]
    for rate in rates:
        spread = statistics.pstdev(rate.rates)
        share = ""
        if rate.test.startswith("tg") and bandwidth:
            share = f"{rate.steps * size / bandwidth:.0%}"
        speed = f"{statistics.median(rate.rates):.2f} ± {spread:.2f}"
        rows.append((model.path.name, f"{size / 2**20:.1f} MiB", rate.test, str(rate.batch), speed, share))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
        if row is rows[0]:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        print(f"most memory of the process: {most / 2**20:.0f} MiB")
    if bandwidth:
        print(f"bandwidth of a copy: {bandwidth / 1e9:.1f} GB/s")


def _timed(call: object, repeats: int) -> list[float]:
    """Return the seconds of each of ``repeats`` calls, after one that is not measured."""
    assert callable(call)
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found
