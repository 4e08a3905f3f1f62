"""Lowering rules of the ``gpu`` target, one file an operator family; importing the package registers them all."""

from . import attention, clusters, contraction, control, data, detection, indexing, ordering, recurrent, views
from .table import RULES

__all__ = [
    "RULES",
    "attention",
    "clusters",
    "contraction",
    "control",
    "data",
    "detection",
    "indexing",
    "ordering",
    "recurrent",
    "views",
]
