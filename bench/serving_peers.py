"""Throughput of `mgx-numba-driver serve` beside llama.cpp's server, on one GGUF file under the same requests.

    python -m bench.serving_peers MODEL.gguf [--clients N] [--requests N] [--tokens N] [--threads N]

Both servers answer the same greedy completions, one after the other. Printed are generated tokens per second of wall
time, and the processor time of the server for a token, which other work on the machine changes less. Half of the
prompts share a beginning. The peer is ``llama_cpp.server`` of the package ``llama-cpp-python[server]``; it computes one
request at a time.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

from .serving import BEGINNINGS, COMPLETIONS, SUBJECTS, free_port, own_command, started


def prompts(count: int) -> list[str]:
    """Return different prompts."""
    return [
        f"{BEGINNINGS[0] if k % 2 else ''}Number {k}: tell me about the {SUBJECTS[k % len(SUBJECTS)]}."
        for k in range(count)
    ]


def answered(port: int, prompt: str, tokens: int) -> int:
    """Ask for a completion and return its number of tokens.

    Raises:
        RuntimeError: the server answers with an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    connection.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {text[:200]!r}")
    return int(json.loads(text)["usage"]["completion_tokens"])


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(command: list[str], port: int, path: str, given: argparse.Namespace) -> tuple[int, float, float]:
    """Return a server's generated tokens, tokens per second, and processor time for a token (s)."""
    waiting = prompts(given.requests)
    counts: list[int] = []
    errors: list[str] = []

    def client() -> None:
        while waiting:
            try:
                prompt = waiting.pop()
                counts.append(answered(port, prompt, given.tokens))
            except IndexError:
                return
            except Exception as error:
                errors.append(str(error))

    with started(command, port, path) as server:
        for k in range(3):  # the first requests compile or load what they need
            answered(port, f"Say {k}.", 4)
        clients = [threading.Thread(target=client) for _ in range(given.clients)]
        begin, before = time.perf_counter(), processor_seconds(server.pid)
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        seconds, used = time.perf_counter() - begin, processor_seconds(server.pid) - before
    if errors:
        raise RuntimeError(f"{len(errors)} requests failed, the first with {errors[0]}")
    return sum(counts), sum(counts) / seconds, used / sum(counts)


def main() -> int:
    """Measure both servers and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    port = free_port()
    servers = {"ours": (own_command(given.model, port, given.threads), port, "/health")}
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("fastapi"):
        port = free_port()
        peer = [sys.executable, "-m", "llama_cpp.server", "--model", str(given.model), "--port", str(port)]
        peer += ["--n_threads", str(given.threads), "--n_threads_batch", str(given.threads), "--n_ctx", "4096"]
        servers["llama.cpp"] = [*peer, "--verbose", "false"], port, "/v1/models"
    else:
        print("llama-cpp-python[server] is not installed: ours alone", file=sys.stderr)
    print(f"{'':12} {'tokens':>8} {'tokens/s':>10} {'ms of processor time a token':>30}")
    for name, (command, at, path) in servers.items():
        count, rate, used = measured(command, at, path, given)
        print(f"{name:12} {count:8} {rate:10.1f} {used * 1e3:30.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
