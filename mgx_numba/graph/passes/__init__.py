"""Graph passes, one per file with the pass's name; a pass is imported when it is first requested."""

from .base import Options, Pass, known_passes, make_pass, run_passes

__all__ = ["Options", "Pass", "known_passes", "make_pass", "run_passes"]
