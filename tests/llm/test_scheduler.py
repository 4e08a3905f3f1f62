"""`Scheduler`: requests that join and leave a batch are answered as if each were alone."""

import queue
import threading

import numpy as np
import pytest

from mgx_numba.errors import ParameterError
from mgx_numba.llm import SearchOptions
from mgx_numba.llm.server.scheduler import QueueFullError, Scheduler, TextRequest
from tests.llm.test_generator import greedy
from tests.llm.tiny import END, LONGEST
from tests.llm.words import Words


@pytest.fixture(params=["plain", "grouped"])
def served(request, compiled):
    weights, model = compiled[request.param]
    scheduler = Scheduler(model, Words(), max_batch=3, max_queue=40, chunk=4)
    yield weights, scheduler
    scheduler.close()


def asked(prompt, count, **options):
    events = queue.Queue()
    extra = {name: options.pop(name) for name in ("stops", "processors") if name in options}
    request = TextRequest(np.array(prompt), SearchOptions(max_length=LONGEST, **options), count, events.put, **extra)
    request.events = events
    return request


def answer(request):
    text = ""
    while True:
        event = request.events.get(timeout=60)
        text += event.text
        if event.finish_reason:
            return text, event.finish_reason


def alone(weights, prompt, count):
    tokens = greedy(weights, prompt, len(prompt) + count)[len(prompt) :]
    return Words().decode(t for t in tokens if t != END), "stop" if tokens[-1] == END else "length"


def test_many_requests_of_different_lengths_are_answered_as_alone(served):
    weights, scheduler = served
    rng = np.random.default_rng(1)
    prompts = [rng.integers(4, 50, rng.integers(1, 14)).tolist() for _ in range(24)]
    counts = rng.integers(1, 25, 24).tolist()
    requests = [asked(p, n) for p, n in zip(prompts, counts, strict=True)]
    for part in (requests[:7], requests[7:]):
        scheduler.submit(*part)
    for request, prompt, count in zip(requests, prompts, counts, strict=True):
        assert answer(request) == alone(weights, prompt, count)
    assert scheduler.metrics.batched > scheduler.metrics.steps  # there were batches


def test_draws_do_not_depend_on_other_requests(served):
    _, scheduler = served
    options = {"do_sample": True, "random_seed": 4, "top_k": 0, "ignore_eos": True}
    first = asked([5, 6], 12, **options)
    scheduler.submit(first)
    text = answer(first)
    others = [asked([k + 4] * k, 9) for k in range(1, 4)]
    again = asked([5, 6], 12, **options)
    scheduler.submit(*others, again)
    assert answer(again) == text


def test_a_request_that_is_cancelled_leaves_the_others_alone(served):
    weights, scheduler = served
    cancelled = threading.Event()

    def wait(tokens, logits):
        if len(tokens) > 6:
            cancelled.wait(60)
        return logits

    stopped = asked([9] * 5, 60, ignore_eos=True, processors=[wait])
    others = [asked([k, 8, k], 30) for k in (5, 6, 7, 10)]
    scheduler.submit(stopped, *others)
    stopped.events.get(timeout=60)
    stopped.cancel()
    cancelled.set()
    for request, k in zip(others, (5, 6, 7, 10), strict=True):
        assert answer(request) == alone(weights, [k, 8, k], 30)
    while not stopped.events.empty():
        assert not stopped.events.get().finish_reason


def test_known_beginnings_are_reused_between_requests(served):
    weights, scheduler = served
    start = list(range(4, 34))
    first = asked(start, 5)
    scheduler.submit(first)
    answer(first)
    second = asked([*start, 40, 41], 5)
    scheduler.submit(second)
    assert answer(second) == alone(weights, [*start, 40, 41], 5)
    assert second.reused == 30


def test_a_beginning_is_known_while_its_first_text_goes_on(served):
    weights, scheduler = served
    start = list(range(4, 34))
    requests = [asked([*start, 40 + k], 5) for k in range(4)]
    scheduler.submit(*requests)
    for k, request in enumerate(requests):
        assert answer(request) == alone(weights, [*start, 40 + k], 5)
    assert [request.reused for request in requests] == [0, 30, 30, 30]


def test_a_stop_string_ends_a_text_before_it(served):
    weights, scheduler = served
    words = alone(weights, [5, 6, 7], 20)[0]
    stop = " ".join(words.split()[3:5])
    request = asked([5, 6, 7], 20, stops=[stop])
    scheduler.submit(request)
    assert answer(request) == (words[: words.index(stop)], "stop")


def test_a_processor_that_fails_ends_its_request_alone(served):
    weights, scheduler = served
    wrong = asked([5, 6], 9, processors=[lambda tokens, logits: logits[:3]])
    right = asked([5, 6], 9)
    scheduler.submit(wrong, right)
    text, reason = answer(wrong)
    assert reason == "error" and "expected (50,)" in text
    assert answer(right) == alone(weights, [5, 6], 9)


def test_a_step_that_fails_ends_its_requests_and_the_next_ones_run(served, monkeypatch):
    weights, scheduler = served

    def broken(tokens, logits):
        raise ZeroDivisionError("of the test")

    wrong = asked([5, 6], 9, processors=[broken])
    scheduler.submit(wrong)
    assert answer(wrong) == ("ZeroDivisionError: of the test", "error")
    right = asked([5, 6], 9)
    scheduler.submit(right)
    assert answer(right) == alone(weights, [5, 6], 9)


def test_the_queue_and_the_context_have_limits(compiled):
    weights, model = compiled["plain"]
    scheduler = Scheduler(model, Words(), max_batch=1, max_queue=2)
    held, go = threading.Event(), threading.Event()

    def wait(tokens, logits):
        held.set()
        go.wait(60)
        return logits

    first = asked([5], 2, processors=[wait])
    scheduler.submit(first)
    held.wait(60)
    scheduler.submit(asked([5], 2), second := asked([5], 2))
    with pytest.raises(QueueFullError, match="2 requests wait"):
        scheduler.submit(asked([5], 2))
    assert scheduler.metrics.refused == 1
    go.set()
    assert answer(second) == alone(weights, [5], 2)
    with pytest.raises(ParameterError, match=r"96 tokens; .* context length 96"):
        scheduler.submit(asked([5] * LONGEST, 2))
    with pytest.raises(ParameterError, match="0 tokens; expected at least 1"):
        scheduler.submit(asked([], 2))
    scheduler.close()
    with pytest.raises(QueueFullError, match="shutting down"):
        scheduler.submit(asked([5], 2))
