"""The passes of the ``gpu`` target, in order: those whose results have kernels here."""

from __future__ import annotations

from ..passes import PASSES as OF_COMPILERS

__all__ = ["PASSES"]

WITHOUT_KERNEL = frozenset(("one_pass_variance", "rewrite_reduce_max", "eliminate_data_type"))
"""Passes that make operators which only the CPU has a kernel for, and the one that makes float32 of 16-bit floats:
tensor cores take these as they are."""

FUSING = OF_COMPILERS.index("fuse_contraction")
"""What is in 16 bits is settled before regions are made of the rest."""

QUANTISED = OF_COMPILERS.index("simplify_qdq")
"""What is in 8 bits is settled before contractions of integers are made."""

PASSES: tuple[str, ...] = tuple(
    name
    for name in (
        *OF_COMPILERS[:QUANTISED], "narrow_residuals", *OF_COMPILERS[QUANTISED:FUSING], "round_once",
        *OF_COMPILERS[FUSING:],
    )
    if name not in WITHOUT_KERNEL
)  # fmt: skip
