"""Parse, compile and build models for a C++ program, which starts this command: see docs/cpp.md."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import closing

from ...errors import MgxError, OptionError
from ..logs import LOG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no flags: the command has none."""


def run(args: argparse.Namespace) -> int:
    """Answer requests on standard input, a socket, until it is closed; send printed text to standard error."""
    from ..serving.channel import receive, send  # late: other commands do not need it
    from ..serving.service import Service

    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("serve is started by C++ programs, which say what they want over a socket")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is for the C++ program
    os.dup2(2, 1)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(0), "wb")
    with requests, answers, closing(Service()) as service:
        while (request := receive(requests)) is not None:
            try:
                answer = service.answer(request)
            except Exception as error:  # this request fails; other programs are kept
                LOG.debug("%s", request["do"], exc_info=True)
                known = isinstance(error, MgxError)
                answer = {"error": str(error) if known else f"{request['do']}: {type(error).__name__}: {error}"}
            sys.stdout.flush()  # printed text must precede the answer
            send(answers, answer)
    return 0
