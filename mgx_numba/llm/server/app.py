"""The server's routes over a `Scheduler`, and `serve`, which runs them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ...dataclass import dataclass
from ...errors import MgxError
from ..generation.guidance import Guide, guide
from ..generation.logprobs import TokenLogprob
from ..model import LanguageModel
from ..optional import required
from .bodies import BodyError, ParsedBody, UnknownModelError, asked_chat, asked_completion, checked_body
from .forms import AnswerForm, ChatForm, CompletionForm
from .scheduler import QueueFullError, Scheduler, TextEvent, TextRequest

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_PURPOSE = "the server of language models"


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        name: the model's name for clients; empty for the name of its folder or file.
        max_batch, max_queue, chunk, prefix_bytes: as of `Scheduler`.
        max_body: most bytes of a request's body.
    """

    name: str = ""
    max_batch: int = 8
    max_queue: int = 256
    chunk: int = 256
    prefix_bytes: int = 1 << 28
    max_body: int = 4 << 20


class _Failure(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def make_app(model: LanguageModel, options: ServerOptions | None = None) -> Starlette:
    """Return a Starlette application that serves a model; its scheduler runs while the application does.

    Raises:
        UnsupportedError: the package ``starlette`` is not installed.
    """
    required("starlette", _PURPOSE)
    from starlette.applications import Starlette
    from starlette.routing import Route

    server = _Server(model, options or ServerOptions())

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        with server.running():
            yield

    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model_named),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve(
    model: LanguageModel, host: str = "127.0.0.1", port: int = 8000, options: ServerOptions | None = None
) -> None:
    """Serve a model until the process is interrupted.

    Raises:
        UnsupportedError: the package ``uvicorn`` or ``starlette`` is not installed.
    """
    uvicorn = required("uvicorn", _PURPOSE)
    uvicorn.run(make_app(model, options), host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


class _Server:
    """The handlers of the routes."""

    def __init__(self, model: LanguageModel, options: ServerOptions) -> None:
        self._model, self._options = model, options
        self._name = options.name or model.path.name
        self._tokenizer = model.tokenizer
        self._created = int(time.time())
        self._scheduler: Scheduler | None = None

    def running(self) -> AbstractContextManager[None]:
        """Return a context in which the scheduler runs."""
        from contextlib import contextmanager

        @contextmanager
        def context() -> Iterator[None]:
            o = self._options
            self._scheduler = Scheduler(
                self._model,
                self._tokenizer,
                max_batch=o.max_batch,
                max_queue=o.max_queue,
                chunk=o.chunk,
                prefix_bytes=o.prefix_bytes,
            )
            try:
                yield
            finally:
                self._scheduler.close()

        return context()

    async def chat(self, request: Request) -> Response:
        """Answer ``/v1/chat/completions``."""
        return await self._answered(request, asked_chat, ChatForm)

    async def completions(self, request: Request) -> Response:
        """Answer ``/v1/completions``."""
        return await self._answered(request, asked_completion, CompletionForm)

    async def models(self, request: Request) -> Response:
        """Answer ``/v1/models``."""
        return _json({"object": "list", "data": [self._entry()]})

    async def model_named(self, request: Request) -> Response:
        """Answer ``/v1/models/NAME``."""
        name = request.path_params["name"]
        if name != self._name:
            failure = _Failure(404, f"the model {name!r} does not exist", _INVALID, "model", "model_not_found")
            return _json(failure.body, failure.status)
        return _json(self._entry())

    async def health(self, request: Request) -> Response:
        """Answer ``/health``."""
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Answer ``/metrics``."""
        from starlette.responses import PlainTextResponse

        s = self._running_scheduler
        text = s.metrics.text(s.waiting, s.running, s.caches.hits, s.caches.reused)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @property
    def _running_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "the application's lifespan has not begun"
        return self._scheduler

    def _entry(self) -> dict[str, object]:
        return {"id": self._name, "object": "model", "created": self._created, "owned_by": "mgx_numba"}

    async def _answered(
        self, request: Request, parse: Callable[..., ParsedBody], form_type: type[AnswerForm]
    ) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        try:
            body = checked_body(await self._read(request), self._name)
            # Tokens of a long text take a while, in which the loop serves other clients.
            asked = await asyncio.to_thread(parse, body, self._model, self._tokenizer)
            guides = await asyncio.to_thread(self._guides, asked)
            job = _Job(asked, guides, asyncio.get_running_loop(), self._model.context_length)
            self._running_scheduler.submit(*job.requests)
        except ClientDisconnect:  # nobody reads the answer
            return Response(status_code=400)
        except _Failure as failure:
            return _json(failure.body, failure.status)
        except QueueFullError as error:
            return _json(_Failure(503, str(error), "server_error", code="queue_full").body, 503, {"retry-after": "1"})
        except UnknownModelError as error:
            return _json(_Failure(404, str(error), _INVALID, "model", "model_not_found").body, 404)
        except BodyError as error:
            return _json(_Failure(400, str(error), _INVALID, error.field).body, 400)
        except MgxError as error:
            code = "context_length_exceeded" if "context length" in str(error) else None
            return _json(_Failure(400, str(error), _INVALID, code=code).body, 400)
        form = form_type(self._name, self._tokenizer)
        if asked.stream:
            from starlette.responses import StreamingResponse

            return StreamingResponse(
                job.streamed(form), media_type="text/event-stream", headers={"cache-control": "no-cache"}
            )
        return await job.whole(form, request)

    def _guides(self, asked: ParsedBody) -> list[Guide | None]:
        """Return the initial state of the grammar, if there is one, for each text."""
        count = len(asked.prompts) * asked.choices
        if asked.guidance is None:
            return [None] * count
        ends = () if asked.options.ignore_eos else self._model.eos_token_ids
        return [guide(*asked.guidance, self._tokenizer, self._model.vocab_size, ends) for _ in range(count)]

    async def _read(self, request: Request) -> bytes:
        """Return the body, of at most ``max_body`` bytes."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._options.max_body:
                message = f"the body has more than {self._options.max_body} bytes"
                raise _Failure(413, message, _INVALID, code="body_too_large")
            parts.append(part)
        return b"".join(parts)


_INVALID = "invalid_request_error"


class _Job:
    """The generation requests that a body asks for, and their events."""

    def __init__(
        self, asked: ParsedBody, guides: list[Guide | None], loop: asyncio.AbstractEventLoop, context_length: int
    ) -> None:
        self._asked = asked
        self._events: asyncio.Queue[tuple[int, TextEvent]] = asyncio.Queue()
        self.requests = []
        for index, state in enumerate(guides):

            def notify(event: TextEvent, index: int = index) -> None:
                loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

            options = asked.options
            if options.random_seed >= 0:
                options = replace(options, random_seed=options.random_seed + index % asked.choices)
            self.requests.append(
                TextRequest(
                    asked.prompts[index // asked.choices],
                    options,
                    asked.max_tokens or context_length,
                    notify,
                    asked.stops,
                    asked.processors,
                    state,
                    asked.top_logprobs,
                )
            )

    async def events(self) -> AsyncIterator[tuple[int, TextEvent]]:
        """Yield the events of all requests until each has ended; cancel the requests if the reader goes away."""
        left = len(self.requests)
        try:
            while left > 0:
                index, event = await self._events.get()
                left -= bool(event.finish_reason)
                yield index, event
        finally:
            for request in self.requests:
                request.cancel()

    async def streamed(self, form: AnswerForm) -> AsyncIterator[str]:
        """Yield server-sent events."""
        asked = self._asked
        for index in range(len(self.requests)):
            for chunk in form.first(index, asked.texts[index // asked.choices] if asked.texts else ""):
                yield _sent(chunk)
        async for index, event in self.events():
            if event.finish_reason == "error":
                yield _sent(_Failure(500, event.text, "server_error").body)
                return
            if event.text or event.logprobs:
                yield _sent(form.piece(index, event.text, event.logprobs if asked.top_logprobs is not None else None))
            if event.finish_reason:
                yield _sent(form.end(index, event.finish_reason))
        if asked.include_usage:
            yield _sent({**form.base(), "choices": [], "usage": self.usage()})
        yield "data: [DONE]\n\n"

    async def whole(self, form: AnswerForm, request: Request) -> Response:
        """Return the response with all texts; none if the client has gone."""
        asked = self._asked
        texts = [[asked.texts[k // asked.choices]] if asked.texts else [] for k in range(len(self.requests))]
        reasons = [""] * len(self.requests)
        logprobs: list[list[TokenLogprob]] = [[] for _ in self.requests]
        watch = asyncio.create_task(self._watch(request))
        try:
            async for index, event in self.events():
                if event.finish_reason == "error":
                    return _json(_Failure(500, event.text, "server_error").body, 500)
                texts[index].append(event.text)
                logprobs[index] += event.logprobs
                reasons[index] = event.finish_reason
        finally:
            watch.cancel()
        known = logprobs if asked.top_logprobs is not None else [None] * len(texts)
        choices = [form.choice(k, "".join(text), reasons[k], known[k]) for k, text in enumerate(texts)]
        return _json({**form.base(whole=True), "choices": choices, "usage": self.usage()})

    async def _watch(self, request: Request) -> None:
        """Cancel the requests when the client goes away."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        for index, each in enumerate(self.requests):
            each.cancel()
            self._events.put_nowait((index, TextEvent("", "stop")))

    def usage(self) -> dict[str, object]:
        """Return the numbers of tokens; a prompt counts once for all its choices."""
        prompt = sum(len(tokens) for tokens in self._asked.prompts)
        reused = sum(request.reused for request in self.requests[:: self._asked.choices])
        generated = sum(request.generated for request in self.requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": reused},
        }


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body, status, headers)


def _sent(body: object) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
