"""Print the perplexity of a language model on a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, OptionError
from ..language import add_model, load_language_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_model(parser)
    parser.add_argument("--text", metavar="FILE", help="a text in UTF-8 (default: what Python's help() tells)")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens of a window (default 512)")
    parser.add_argument(
        "--windows", type=int, default=16, metavar="N", help="most windows; 0: the whole text (default 16)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ...llm.generation.engine import DecoderBatch
    from ...llm.perplexity import perplexity

    if args.windows < 0:
        raise OptionError(f"--windows is {args.windows}, expected 0 or more")
    text = _help_text() if args.text is None else _read(args.text)
    model = load_language_model(args)
    if args.window > model.context_length:
        raise OptionError(
            f"--window is {args.window}, expected at most the model's context length {model.context_length}"
        )
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text).tolist()
    first = tokenizer.encode("", add_special_tokens=True).tolist()
    ids = ids[: args.windows * args.window] if args.windows else ids

    def step(tokens: np.ndarray, caches: list[Any] | None) -> tuple[np.ndarray, list[Any]]:
        (engine,) = caches or [DecoderBatch(model.whole_decoder, shared=model.shares_buffer)]
        return engine.step(tokens), [engine]

    found = perplexity(step, ids, args.window, first[0] if first and first[0] == model.bos_token_id else -1)
    print(f"perplexity {found.value:.4f} ± {found.error:.4f} ({found.tokens} tokens)")
    return 0


def _help_text() -> str:
    """Return the language reference that ships with Python for ``help()``."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text in UTF-8: {error}") from error
