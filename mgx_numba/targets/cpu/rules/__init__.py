"""Lowering rules of the ``cpu`` target, one file an operator family; importing the package registers them all."""

from . import (
    attention,
    clusters,
    contraction,
    control,
    custom,
    detection,
    indexing,
    ordering,
    pooling,
    recurrent,
    resampling,
    views,
)
from .table import RULES

__all__ = [
    "RULES",
    "attention",
    "clusters",
    "contraction",
    "control",
    "custom",
    "detection",
    "indexing",
    "ordering",
    "pooling",
    "recurrent",
    "resampling",
    "views",
]
