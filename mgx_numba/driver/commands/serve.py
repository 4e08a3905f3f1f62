"""Serve a language model with OpenAI's interface; without a model, build models for the C++ program that starts it.

The C++ programs are those of docs/cpp.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import closing

from ...errors import MgxError, OptionError
from ..language import add_machine, load_language_model
from ..logs import LOG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", nargs="?", help="folder of onnxruntime-genai or of transformers, or a GGUF file")
    add_machine(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port (default 8000)")
    parser.add_argument("--name", default="", help="the model's name for clients (default: its file's)")
    parser.add_argument("--max-batch", type=int, default=8, metavar="N", help="most texts at a time (default 8)")
    parser.add_argument("--max-queue", type=int, default=256, metavar="N", help="most waiting requests (default 256)")
    parser.add_argument(
        "--max-body", type=int, default=4 << 20, metavar="N", help="most bytes of a body (default 4 MiB)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve the model; without a model answer requests of the C++ program on standard input."""
    if args.model is None:
        return _serve_program()
    from ...llm.server import ServerOptions, serve

    for name in ("max_batch", "max_body", "port"):
        if getattr(args, name) < 1:
            raise OptionError(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected a number from 1 on")
    model = load_language_model(args)
    print(f"serving {model.path.name} at http://{args.host}:{args.port}/v1", file=sys.stderr, flush=True)
    serve(
        model,
        args.host,
        args.port,
        ServerOptions(args.name, max_batch=args.max_batch, max_queue=args.max_queue, max_body=args.max_body),
    )
    return 0


def _serve_program() -> int:
    """Answer requests on standard input, a socket, until it is closed; send printed text to standard error."""
    from ..serving.channel import receive, send  # late: other commands do not need it
    from ..serving.service import Service

    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("serve is started by C++ programs, which say what they want over a socket")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is for the C++ program
    os.dup2(2, 1)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(0), "wb")
    one_call = threading.RLock()  # custom operators may be computed by several threads

    def answer(request: dict[str, object]) -> None:
        try:
            found = service.answer(request)
        except Exception as error:  # this request fails; other programs are kept
            LOG.debug("%s", request["do"], exc_info=True)
            known = isinstance(error, MgxError)
            found = {"error": str(error) if known else f"{request['do']}: {type(error).__name__}: {error}"}
        sys.stdout.flush()  # printed text must precede the answer
        send(answers, found)

    def call(what: dict[str, object]) -> dict[str, object]:
        with one_call:
            send(answers, what)
            while (reply := receive(requests)) is not None:
                if reply["do"] == "returned":
                    if "error" in reply:
                        raise OptionError(reply["error"])
                    return reply
                answer(reply)  # the function that is called may ask for more
        raise OptionError("the C++ program has ended")

    with requests, answers, closing(Service(call)) as service:
        while (request := receive(requests)) is not None:
            answer(request)
    return 0
