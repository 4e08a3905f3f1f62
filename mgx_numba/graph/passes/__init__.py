"""Graph passes, one a file; importing the package makes all of them known by name."""

from . import dead_code_elimination, fuse_contraction, fuse_pointwise, fuse_reduce
from .base import Options, Pass, known_passes, make_pass, run_passes

__all__ = ["Options", "Pass", "known_passes", "make_pass", "run_passes"]
