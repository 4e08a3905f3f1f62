"""A server of a language model with OpenAI's interface: one scheduler batches the requests of all clients."""

from __future__ import annotations

from .app import ServerOptions, make_app, serve
from .scheduler import Scheduler, TextRequest

__all__ = ["Scheduler", "ServerOptions", "TextRequest", "make_app", "serve"]
