"""The public facade, in MIGraphX's names; ``mgx_numba`` re-exports it."""
