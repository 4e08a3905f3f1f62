"""A server of a language model with OpenAI's interface: one scheduler batches the requests of all clients."""

from __future__ import annotations

from .app import ServerOptions, make_app, serve
from .scheduler import GenerationRequest, Scheduler

__all__ = ["GenerationRequest", "Scheduler", "ServerOptions", "make_app", "serve"]
