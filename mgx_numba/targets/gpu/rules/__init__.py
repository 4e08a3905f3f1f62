"""Lowering rules of the ``gpu`` target, one file an operator family; importing the package registers them all."""

from . import clusters, contraction, data, views
from .table import RULES

__all__ = ["RULES", "clusters", "contraction", "data", "views"]
