"""What files have that ONNX forbids although nobody doubts what is meant: told once each, or refused."""

from __future__ import annotations

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
        if not self.silent:
            warn(what if node is None else f"{node.where}: {what}")
