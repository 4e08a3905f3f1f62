"""Acceptance of unambiguous deviations from the ONNX specification, with one warning each; strict mode refuses them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from ...errors import ParseError
from ...messages import warn


class Located(Protocol):
    """A node that has a deviation."""

    @property
    def where(self) -> str:
        """The node's place in the model, for messages."""


class FinalError(ParseError):
    """Refusal of a node that holds for any values of its inputs."""


class Leniency:
    """A record of accepted deviations from the ONNX specification.

    Args:
        strict: refuse deviations.
        silent: give no warnings.

    Attributes:
        silent: as given.
        told: the distinct deviations in order, each with its node (``None``: the graph).
    """

    def __init__(self, strict: bool = False, silent: bool = False) -> None:
        self.strict = strict
        self.silent = silent
        self._noted: dict[Located, list[str]] = {}
        self.told: dict[tuple[Located | None, str], None] = {}

    def accept(self, what: str, node: Located | None = None) -> None:
        """Accept a deviation with one warning that names the node; ``what`` is the deviation and its interpretation.

        Raises:
            FinalError: deviations are refused.
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
    def one_warning(self, node: Located) -> Iterator[None]:
        """Collect all deviations of a node within the context, and warn of them at once at its end."""
        self._noted[node] = []
        try:
            yield
        finally:
            noted = self._noted.pop(node)
            if noted and not self.silent:
                warn(f"{node.where}: {'; '.join(noted)}")
