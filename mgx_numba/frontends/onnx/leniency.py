"""What files have that ONNX forbids although nobody doubts what is meant: told once each, or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import ParseError
from ...messages import warn

if TYPE_CHECKING:
    from .node import Node

__all__ = ["FinalError", "Leniency"]


class FinalError(ParseError):
    """A node that is refused whatever becomes known of its inputs later."""


class Leniency:
    """Takes note of what is accepted although ONNX forbids it.

    Args:
        strict: refuse it.
        silent: give no warnings.

    Attributes:
        silent: as given.
        told: what was accepted, and the node that has it (``None``: the graph), in order and once each.
    """

    def __init__(self, strict: bool = False, silent: bool = False) -> None:
        self.strict = strict
        self.silent = silent
        self._noted: dict[Node, list[str]] = {}
        self.told: dict[tuple[Node | None, str], None] = {}

    def accept(self, what: str, node: Node | None = None) -> None:
        """Accept ``what``, which says what is wrong and how it is taken, with one warning that names the node.

        Raises:
            FinalError: everything is to be as ONNX wants it.
        """
        if self.strict:
            raise FinalError(what)
        if (node, what) in self.told:
            return
        self.told[node, what] = None
        if node in self._noted:
            self._noted[node].append(what)
        elif not self.silent:
            warn(what if node is None else f"{node.where}: {what}")

    @contextlib.contextmanager
    def one_warning(self, node: Node) -> Iterator[None]:
        """A context in which all that is accepted about a node is told at once, at its end."""
        self._noted[node] = []
        try:
            yield
        finally:
            noted = self._noted.pop(node)
            if noted and not self.silent:
                warn(f"{node.where}: {'; '.join(noted)}")
