"""The server's routes, asked through ASGI without a network."""

import asyncio
import json
import threading

import numpy as np
import pytest

from mgx_numba.llm.model import LanguageModel
from mgx_numba.llm.server import ServerOptions, app, make_app
from tests.llm.test_scheduler import alone
from tests.llm.words import Words

pytest.importorskip("starlette")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def server(compiled, monkeypatch):
    """Return the weights, and a function that runs a coroutine function over a running application."""
    weights, model = compiled["grouped"]
    monkeypatch.setattr(LanguageModel, "tokenizer", Words())

    def run(talk, **options):
        application = make_app(model, ServerOptions(name="tiny", **options))

        async def whole():
            async with application.router.lifespan_context(application):
                return await talk(application)

        return asyncio.run(whole())

    return weights, run


async def ask(application, path, body=None, leave_after=None):
    """Return status and body; ``leave_after``: go away after so many parts of the answer."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "asgi": {}}
    parts, gone, status, sent = [], asyncio.Event(), 0, False

    async def receive():
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message["body"])
            if leave_after is not None and len(parts) >= leave_after:
                gone.set()

    if leave_after == 0:
        gone.set()
    await application(scope, receive, send)
    return status, b"".join(parts).decode()


def sent_events(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_whole_and_streamed_answers_are_the_same(server):
    weights, run = server
    body = {"messages": [{"role": "user", "content": "t5 t6"}], "temperature": 0, "max_tokens": 12}
    text, reason = alone(weights, [1, 5, 6], 12)

    async def talk(application):
        status, whole = await ask(application, CHAT, {**body, "model": "tiny"})
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return status, json.loads(whole), sent_events((await ask(application, CHAT, body | options))[1])

    status, whole, events = run(talk)
    assert status == 200 and whole["object"] == "chat.completion" and whole["model"] == "tiny"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert whole["choices"][0]["finish_reason"] == reason
    assert whole["usage"]["prompt_tokens"] == 3
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == text
    assert events[-2]["choices"][0]["finish_reason"] == reason
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_completions_have_several_prompts_choices_and_echo(server):
    weights, run = server
    body = {"prompt": ["t5 t6", "t7"], "n": 2, "temperature": 0, "max_tokens": 4, "echo": True}

    async def talk(application):
        return json.loads((await ask(application, COMPLETIONS, body))[1])

    found = run(talk)
    texts = [f"t5 t6{alone(weights, [5, 6], 4)[0]}"] * 2 + [f"t7{alone(weights, [7], 4)[0]}"] * 2
    assert [choice["text"] for choice in found["choices"]] == texts
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["prompt_tokens"] == 3


def test_biases_of_tokens_decide(server):
    _, run = server
    body = {"prompt": [5, 6], "logit_bias": {"44": 100}, "max_tokens": 3}

    async def talk(application):
        return json.loads((await ask(application, COMPLETIONS, body))[1])["choices"][0]["text"]

    assert run(talk) == "t44 t44 t44 "


def log_softmax(logits):
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def test_log_probabilities_of_tokens_are_the_models(server):
    weights, run = server
    prompt, chat = [5, 6], [1, 5, 6]
    common = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "repetition_penalty": 1.5}

    async def talk(application):
        asked = {"prompt": prompt, "logprobs": 3, **common}
        message = {"messages": [{"role": "user", "content": "t5 t6"}], "logprobs": True, "top_logprobs": 2, **common}
        found = [json.loads((await ask(application, path, body))[1]) for path, body in
                 ((COMPLETIONS, asked), (CHAT, message))]  # fmt: skip
        pieces = [sent_events((await ask(application, path, body | {"stream": True}))[1]) for path, body in
                  ((COMPLETIONS, asked), (CHAT, message))]  # fmt: skip
        return found, pieces

    (plain, chatted), (plain_pieces, chat_pieces) = run(talk)
    found = plain["choices"][0]["logprobs"]
    tokens = [int(text[1:]) for text in found["tokens"]]
    assert "".join(found["tokens"]) == plain["choices"][0]["text"] and len(tokens) == 5
    assert found["text_offset"] == np.cumsum([0, *map(len, found["tokens"][:-1])]).tolist()
    for k in range(5):
        wanted = log_softmax(weights.logits([*prompt, *tokens[:k]])[-1])
        assert found["token_logprobs"][k] == pytest.approx(wanted[tokens[k]], abs=1e-3)
        best = {f"t{t} ": wanted[t] for t in np.argsort(-wanted)[:3]}
        assert found["top_logprobs"][k] == pytest.approx(best, abs=1e-3)
    content = chatted["choices"][0]["logprobs"]["content"]
    tokens = [int(entry["token"][1:]) for entry in content]
    for k, entry in enumerate(content):
        wanted = log_softmax(weights.logits([*chat, *tokens[:k]])[-1])
        assert entry["logprob"] == pytest.approx(wanted[tokens[k]], abs=1e-3)
        assert [each["token"] for each in entry["top_logprobs"]] == [f"t{t} " for t in np.argsort(-wanted)[:2]]
        assert bytes(entry["bytes"]).decode() == entry["token"]
    for pieces, key, whole in ((plain_pieces, "text_offset", found["text_offset"]), (chat_pieces, "content", content)):
        parts = [piece["choices"][0]["logprobs"] or {key: []} for piece in pieces]
        assert [each for part in parts for each in part[key]] == whole


@pytest.mark.parametrize(
    "body,status,field,message",
    [
        (b"{", 400, None, "not JSON"),
        (b"[" * 100000, 400, None, "not JSON"),
        (b"[]", 400, None, "type list, expected an object"),
        ({}, 400, "prompt", "expected a text or a list of tokens"),
        ({"prompt": []}, 400, "prompt", "expected a text or a list of tokens"),
        ({"prompt": [5, 50]}, 400, "prompt", "vocabulary of 50 tokens"),
        ({"prompt": "t5", "temperature": "hot"}, 400, "temperature", 'from 0 to 10, got "hot"'),
        ({"prompt": "t5", "top_p": True}, 400, "top_p", "expected a number"),
        ({"prompt": "t5", "max_tokens": 0}, 400, "max_tokens", "an integer from 1 on, got 0"),
        ({"prompt": "t5", "stop": [""]}, 400, "stop", "not empty"),
        ({"prompt": "t5", "logit_bias": {"x": 1}}, 400, "logit_bias", "numbers by token"),
        ({"prompt": "t5", "logit_bias": {"5": float("nan")}}, 400, "logit_bias", "biases from -100 to 100"),
        ({"prompt": "t5", "logprobs": 21}, 400, "logprobs", "an integer from 0 to 20, got 21"),
        ({"prompt": "t5", "logprobs": 1, "echo": True}, 400, "logprobs", "not supported with echo"),
        ({"prompt": "t5", "temprature": 1}, 400, "temprature", "did you mean temperature"),
        ({"prompt": "t5", "guided_json": {}, "guided_regex": "a"}, 400, "guided_regex", "one constraint"),
        ({"prompt": "t5 " * 96}, 400, None, "fewer than the model's context length 96"),
        ({"prompt": "t5", "model": "other"}, 404, "model", "'other' does not exist; this server has 'tiny'"),
        ({"prompt": "t5" * 1000}, 413, None, "more than 1000 bytes"),
    ],
)
def test_wrong_bodies_are_named(server, body, status, field, message):
    _, run = server

    async def talk(application):
        return await ask(application, COMPLETIONS, body)

    found, text = run(talk, max_body=1000 if status == 413 else 1 << 20)
    error = json.loads(text)["error"]
    assert (found, error["param"]) == (status, field) and message in error["message"]


@pytest.mark.parametrize(
    "message,wrong",
    [("hello", "messages[0]: expected an object"), ({"role": "user", "content": 5}, "messages[0].content: expected")],
)
def test_wrong_messages_are_named(server, message, wrong):
    _, run = server

    async def talk(application):
        return await ask(application, CHAT, {"messages": [message]})

    status, text = run(talk)
    assert status == 400 and wrong in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(server, stream, monkeypatch):
    _, run = server
    gone = threading.Event()

    class Waiting(app.Scheduler):
        def _step(self):
            gone.wait(60)
            super()._step()

    monkeypatch.setattr(app, "Scheduler", Waiting)
    body = {"prompt": "t5 t6", "max_tokens": 80, "ignore_eos": True, "stream": stream}

    async def talk(application):
        await ask(application, COMPLETIONS, body, leave_after=1 if stream else 0)
        gone.set()
        for _ in range(1000):
            text = (await ask(application, "/metrics"))[1]
            if "mgx_llm_requests_running 0" in text and "mgx_llm_requests_waiting 0" in text:
                return text
            await asyncio.sleep(0.01)

    text = run(talk)
    assert 'reason="cancelled"} 1' in text and 'reason="length"} 0' in text


def test_models_health_and_metrics(server):
    _, run = server

    async def talk(application):
        await ask(application, COMPLETIONS, {"prompt": "t5", "max_tokens": 2, "ignore_eos": True})
        paths = ("/v1/models", "/v1/models/tiny", "/v1/models/other", "/health", "/metrics", "/v1/nothing")
        return [await ask(application, path) for path in paths]

    models, named, unknown, health, metrics, nothing = run(talk)
    assert json.loads(models[1])["data"][0] == json.loads(named[1])
    assert (unknown[0], health[0], nothing[0]) == (404, 200, 404)
    lines = metrics[1].splitlines()
    assert "mgx_llm_generated_tokens_total 2" in lines and 'mgx_llm_requests_total{reason="length"} 1' in lines
    assert 'mgx_llm_first_token_seconds_bucket{le="+Inf"} 1' in lines


def test_the_openai_client_talks_to_the_server(server):
    openai, httpx = pytest.importorskip("openai"), pytest.importorskip("httpx")
    weights, run = server
    text, reason = alone(weights, [1, 5, 6], 9)
    options = {"model": "tiny", "messages": [{"role": "user", "content": "t5 t6"}], "temperature": 0, "max_tokens": 9}

    async def talk(application):
        transport = httpx.AsyncClient(transport=httpx.ASGITransport(application))
        async with openai.AsyncOpenAI(base_url="http://tiny/v1", api_key="-", http_client=transport) as client:
            whole = await client.chat.completions.create(**options)
            pieces = [c async for c in await client.chat.completions.create(**options, stream=True)]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await client.chat.completions.create(**{**options, "model": "other"})
            return whole, pieces, [m.id async for m in client.models.list()]

    whole, pieces, models = run(talk)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (text, reason)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == text
    assert models == ["tiny"]
