"""Lowering rules of the ``cpu`` target, one file an operator family; importing the package registers them all."""

from . import clusters, contraction, copies, views

__all__ = ["clusters", "contraction", "copies", "views"]
