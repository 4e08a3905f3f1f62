"""Graph passes, one a file named as the pass, which is imported when the pass is asked for."""

from .base import Options, Pass, known_passes, make_pass, run_passes

__all__ = ["Options", "Pass", "known_passes", "make_pass", "run_passes"]
