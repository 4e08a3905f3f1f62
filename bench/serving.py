"""Many clients of `mgx-numba-driver serve` for some minutes: wrong answers, growth of memory, order, and throughput.

    python -m bench.serving MODEL [--seconds N] [--clients N] [--threads N] [--seed N]

Clients ask for texts, whole or streamed, with prompts that share beginnings; they go away in the middle, send malformed
bodies, too long prompts and too large bodies; some texts are constrained by a schema or a regular expression. Any other
answer than the one that is due counts as an error, and the exit status is 1. The server's resident memory is sampled;
its slope is a least-squares fit over the second half of the time. A request is overtaken if a request that was sent
more than ``PATIENCE`` seconds later gets its first token earlier.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 0.25
"""Seconds between two requests within which their bodies may be read in either order."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
PATTERN = "(yes|no), [a-z]{3,8}[.]"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEGINNINGS = ("You are a helpful assistant who answers in one sentence. " * 6, "Once upon a time there was a ", "")
SUBJECTS = ("cat", "river", "train", "winter", "number", "song", "mountain 🏔", "Straße", "日本")
MALFORMED: tuple[tuple[str, Any, int], ...] = (
    (COMPLETIONS, b"{", 400),
    (COMPLETIONS, b"\xff\xfe", 400),
    (COMPLETIONS, b"[" * 5000, 400),
    (COMPLETIONS, {}, 400),
    (COMPLETIONS, {"prompt": []}, 400),
    (COMPLETIONS, {"prompt": [1 << 40]}, 400),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}, 400),
    (COMPLETIONS, {"prompt": "x", "max_tokens": "many"}, 400),
    (COMPLETIONS, {"prompt": "x", "unheard_of": 1}, 400),
    (COMPLETIONS, {"prompt": "x", "model": "other"}, 404),
    (COMPLETIONS, {"prompt": "word " * 50000}, 400),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "("}, 400),
    (CHAT, {"messages": [{"role": 5}]}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}, 400),
    ("/v1/nothing", {}, 404),
)


class Soak:
    """The clients' counts and times."""

    def __init__(self, port: int, deadline: float, seed: int) -> None:
        self.port, self.deadline, self.seed = port, deadline, seed
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.first: list[tuple[float, float]] = []  # times of sending and of the first token
        self.texts: dict[str, Counter[str]] = {}
        self.done: Counter[int] = Counter()
        self.tokens = 0

    def ask(self, path: str, body: Any, method: str = "POST") -> tuple[int, http.client.HTTPResponse]:
        """Send a request and return the status and the response, whose body is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        return response.status, response

    def client(self, number: int) -> None:
        """Ask until the deadline."""
        chance = random.Random(f"{self.seed} {number}")
        kinds: list[Callable[[int, random.Random], None]] = [
            self.whole, self.streamed, self.constrained, self.leaves, self.malformed,
        ]  # fmt: skip
        while time.monotonic() < self.deadline:
            kind = chance.choices(kinds, (4, 4, 1, 2, 2))[0]
            try:
                kind(number, chance)
            except Exception as error:
                self.fail(f"{kind.__name__}: {type(error).__name__}: {error}")
            with self.lock:
                self.counts[kind.__name__] += 1
        with self.lock:
            self.counts["clients that ended"] += 1

    def fail(self, text: str) -> None:
        """Record an error."""
        with self.lock:
            self.errors.append(text)

    def body(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a path and a body."""
        text = f"{chance.choice(BEGINNINGS)}Tell me about the {chance.choice(SUBJECTS)}."
        body: dict[str, Any] = {"max_tokens": chance.choice((1, 5, 20, 60)), "temperature": 0}
        if chance.random() < 0.3:
            body |= {"temperature": 1.0, "top_p": 0.9, "seed": chance.randrange(100)}
        if chance.random() < 0.2:
            body |= {"n": 2, "stop": [".", "\n\n"]}
        if chance.random() < 0.2:
            return CHAT, {**body, "messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 3}
        return COMPLETIONS, {**body, "prompt": text}

    def whole(self, number: int, chance: random.Random) -> None:
        """Ask for a whole text."""
        path, body = self.body(chance)
        status, response = self.ask(path, body)
        found = json.loads(response.read())
        if status != 200:
            self.fail(f"whole: {status} {found}")
            return
        with self.lock:
            self.done[number] += 1
            self.tokens += found["usage"]["completion_tokens"]
            if body["temperature"] == 0:
                choice = found["choices"][0]
                text = choice["text"] if "text" in choice else choice["message"]["content"]
                self.texts.setdefault(json.dumps(body), Counter())[text] += 1

    def streamed(self, number: int, chance: random.Random) -> None:
        """Request a streamed text and read it to the end."""
        path, body = self.body(chance)
        begin = time.monotonic()
        status, response = self.ask(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        lines: list[str] = []
        first = 0.0
        for line in response:
            if line.strip():
                lines.append(line.decode().removeprefix("data: ").strip())
                if not first and has_text(lines[-1]):
                    first = time.monotonic()
        if status != 200 or lines[-1] != "[DONE]":
            self.fail(f"streamed: {status} {lines[-1:]}")
            return
        with self.lock:
            if first:
                self.first.append((begin, first))
            self.done[number] += 1
            self.tokens += json.loads(lines[-2])["usage"]["completion_tokens"]

    def constrained(self, number: int, chance: random.Random) -> None:
        """Request a text that conforms to a schema or a regular expression, and check it."""
        guided = chance.random() < 0.5
        asked: dict[str, Any] = {"guided_json": SCHEMA} if guided else {"guided_regex": PATTERN}
        _, body = self.body(chance)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        status, response = self.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 100, "temperature": 1.0, **asked})
        found = json.loads(response.read())
        if status != 200:
            self.fail(f"constrained: {status} {found}")
            return
        choice = found["choices"][0]
        if guided:  # most tokens may end a text in the white space that JSON allows
            if choice["finish_reason"] == "stop" and sorted(json.loads(choice["text"])) != ["name", "size"]:
                self.fail(f"constrained: {choice['text']!r} does not conform to the schema")
        elif not re.fullmatch(PATTERN, choice["text"]):
            self.fail(f"constrained: {choice['text']!r} does not match {PATTERN!r}")
        with self.lock:
            self.done[number] += 1
            self.tokens += found["usage"]["completion_tokens"]

    def leaves(self, number: int, chance: random.Random) -> None:
        """Go away in the middle of a request or an answer."""
        path, body = self.body(chance)
        data = json.dumps({**body, "max_tokens": 2000, "ignore_eos": True, "stream": chance.random() < 0.5}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            if chance.random() < 0.3:
                connection.sendall(head + data[: chance.randrange(len(data))])
                return
            connection.sendall(head + data)
            connection.settimeout(chance.choice((0.05, 0.5, 2)))
            try:
                for _ in range(chance.randrange(6)):
                    connection.recv(4096)
            except TimeoutError:
                pass

    def malformed(self, number: int, chance: random.Random) -> None:
        """Send a request that the server must refuse."""
        path, body, wanted = chance.choice(MALFORMED)
        if chance.random() < 0.1:
            path, body, wanted = COMPLETIONS, b" " * (5 << 20), 413
        status, response = self.ask(path, body)
        text = response.read()
        if status != wanted:
            self.fail(f"malformed {str(body)[:40]}: {status} {text[:200]!r}, expected {wanted}")


def has_text(event: str) -> bool:
    """Return whether a streamed event brings text of an answer."""
    choices = json.loads(event).get("choices") if event != "[DONE]" else ()
    return any(choice.get("text") or choice.get("delta", {}).get("content") for choice in choices or ())


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], port: int, path: str = "/health") -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the context, which begins once the server answers at ``path``."""
    server = subprocess.Popen(command)
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                connection.request("GET", path)
                if connection.getresponse().status < 500:  # llama-server answers 503 while it loads
                    break
            except OSError:
                if server.poll() is not None:
                    raise
            time.sleep(0.5)
        yield server
    finally:
        server.terminate()
        server.wait(30)


def own_command(model: Path, port: int, threads: int) -> list[str]:
    """Return the command that serves a model; ``threads`` 0: all cores."""
    command = [sys.executable, "-m", "mgx_numba.driver.main", "serve", str(model), "--port", str(port)]
    return [*command, "--num-threads", str(threads)] if threads else command


def resident(pid: int) -> float:
    """Return the resident memory of a process (MiB)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


def metric(soak: Soak, name: str) -> float:
    """Return a number of the server's metrics."""
    lines = soak.ask("/metrics", b"", "GET")[1].read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"mgx_llm_{name} ")))


def slope(samples: list[tuple[float, float]]) -> float:
    """Return the growth of memory (MiB a minute) over the second half of samples of time (s) and memory (MiB)."""
    late = samples[len(samples) // 2 :]
    return statistics.linear_regression([t / 60 for t, _ in late], [m for _, m in late]).slope


def overtaken(first: list[tuple[float, float]]) -> int:
    """Return the number of requests that a request sent more than ``PATIENCE`` later overtook."""
    count = 0
    earliest: list[
        tuple[float, float]
    ] = []  # of requests sent later: time of sending, earliest first token from there on
    for sent, told in sorted(first, reverse=True):
        later = next((best for begun, best in reversed(earliest) if begun > sent + PATIENCE), None)
        count += later is not None and later < told
        earliest.append((sent, min(told, earliest[-1][1]) if earliest else told))
    return count


def report(soak: Soak, memory: list[tuple[float, float]], seconds: float) -> None:
    """Print counts, latencies and memory."""
    print(f"{dict(soak.counts)}")
    hits = metric(soak, "prefix_hits_total")
    print(f"{soak.tokens / seconds:.1f} tokens/s of answers that were read; {hits:.0f} known beginnings of prompts")
    if soak.first:
        times = sorted(told - sent for sent, told in soak.first)
        print(f"first token: median {statistics.median(times):.2f} s, 99% {times[int(len(times) * 0.99)]:.2f} s")
        print(f"requests that were overtaken: {overtaken(soak.first)} of {len(times)}")
    shares = sorted(count for client, count in soak.done.items() if client >= 0)
    print(f"answers of a client: {shares[0]} to {shares[-1]}" if shares else "no answers")
    several = [texts for texts in soak.texts.values() if texts.total() > 1]
    same = sum(texts.most_common(1)[0][1] for texts in several)
    print(f"greedy answers equal to the usual one: {same} of {sum(t.total() for t in several)}")
    shown = memory[:: max(1, len(memory) // 10)]
    print(f"memory (MiB): {' '.join(f'{m:.0f}' for _, m in shown)}; slope {slope(memory):.3f} MiB a minute")
    for text, count in Counter(soak.errors).most_common(20):
        print(f"ERROR {count}x {text}")


def main() -> int:
    """Run the server and its clients, and print latencies, throughput and errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    port = free_port()
    with started(own_command(given.model, port, given.threads), port) as server:
        soak = Soak(port, time.monotonic(), given.seed)
        soak.whole(-1, random.Random(0))
        soak.deadline = time.monotonic() + given.seconds
        clients = [threading.Thread(target=soak.client, args=(k,), daemon=True) for k in range(given.clients)]
        for client in clients:
            client.start()
        memory = []
        while time.monotonic() < soak.deadline:
            memory.append((time.monotonic(), resident(server.pid)))
            time.sleep(min(2, given.seconds / 20))
        for client in clients:
            client.join(180)
        end = time.monotonic() + 60
        while metric(soak, "requests_running") + metric(soak, "requests_waiting") and time.monotonic() < end:
            time.sleep(0.2)
        if time.monotonic() >= end:
            soak.fail("requests run on after their clients have gone")
        if soak.counts["clients that ended"] != given.clients:
            soak.fail("clients wait for answers that do not come")
        report(soak, memory, given.seconds)
        return int(bool(soak.errors))


if __name__ == "__main__":
    sys.exit(main())
