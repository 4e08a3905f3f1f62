"""Talk to a language model: answers are printed as they are generated."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from ...errors import OptionError
from ..language import add_model, load_language_model

if TYPE_CHECKING:
    from ...llm import Completion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_model(parser)
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="answer this text only, instead of standard input's lines"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system message of the conversation")
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="most tokens of an answer (default 512)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="draw tokens at random; 0: the likeliest (default)"
    )
    parser.add_argument("--top-k", type=int, metavar="N", help="draw among the N likeliest tokens; 0: all")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw among the likeliest tokens of this probability")
    parser.add_argument("--min-p", type=float, metavar="X", help="least probability relative to the likeliest token's")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the random numbers")
    parser.add_argument("--json-schema", metavar="TEXT", help="constrain answers to JSON of a schema")
    parser.add_argument("--ngram", type=int, default=0, metavar="N", help="propose tokens by looking up the last N")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ...llm import PrefixCache, stream

    model = load_language_model(args)
    converses = model.tokenizer.has_chat_template
    if args.system is not None and not converses:
        raise OptionError("--system: the model has no chat template; it continues texts")
    options: dict[str, Any] = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    options |= {"min_p": args.min_p, "random_seed": args.seed, "json_schema": args.json_schema}
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"max_tokens": args.max_tokens, "ngram_size": args.ngram, "prefix_cache": PrefixCache()}
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    shows = sys.stdin.isatty() and sys.stdout.isatty() and args.prompt is None
    if shows:
        print("An empty line, or Ctrl+D, ends the conversation.", file=sys.stderr)
    while (text := args.prompt if args.prompt is not None else _asked(shows)) is not None:
        messages.append({"role": "user", "content": text})
        start = time.perf_counter()
        completion = stream(model, messages if converses else text, **options)
        first = time.perf_counter() - start
        answer = _printed(completion)
        if sys.stdout.isatty():
            _report(completion, first, time.perf_counter() - start - first)
        messages.append({"role": "assistant", "content": answer})
        if args.prompt is not None:
            break
    return 0


def _asked(shows: bool) -> str | None:
    """Return the next line of standard input; None at its end, and in a terminal for an empty line."""
    if shows:
        print("> ", end="", flush=True)
    line = sys.stdin.readline()
    if not line or (shows and not line.strip()):
        return None
    return line.rstrip("\n") if line.strip() else _asked(shows)


def _printed(completion: Completion) -> str:
    """Print pieces of an answer as they come, and return the whole."""
    pieces = []
    for piece in completion:
        pieces.append(piece)
        print(piece, end="", flush=True)
    print(flush=True)
    return "".join(pieces)


def _report(completion: Completion, first: float, rest: float) -> None:
    """Print the rates of an answer on standard error; ``first`` and ``rest`` are seconds."""
    count = len(completion.tokens)
    print(
        f"[prompt {completion.prompt_tokens} tokens in {first:.2f} s, answer {count} tokens, "
        f"{count / max(rest, 1e-9):.1f} tokens/s]",
        file=sys.stderr,
    )
