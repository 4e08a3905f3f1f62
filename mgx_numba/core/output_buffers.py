"""Names under which a run's inputs may also have memory for its results."""

from __future__ import annotations

import functools

OUTPUT_BUFFERS = "main:#output_"
"""Beginning of the names of parameters that are memory for results, as in MIGraphX."""


@functools.cache
def output_buffer(number: int) -> str:
    """Return MIGraphX's name of the parameter that is memory for a result."""
    return f"{OUTPUT_BUFFERS}{number}"
