"""Lowering rules of the ``cpu`` target, one file an operator family; importing the package registers them all."""

from . import clusters, contraction, copies, detection, indexing, ordering, pooling, resampling, views

__all__ = [
    "clusters",
    "contraction",
    "copies",
    "detection",
    "indexing",
    "ordering",
    "pooling",
    "resampling",
    "views",
]
