"""Options of a compilation, for every target."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from ..dataclass import dataclass

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning

FLOAT32_PRECISIONS = ("highest", "high", "medium")
"""Precision of float32 products: that of float32; three products in a narrower type, whose sum has an error within
1e-5; one product in a narrower type."""


@dataclass(frozen=True)
class TargetOptions:
    """Options of a compilation; a target ignores options that it does not use.

    Attributes:
        fast_math: allow transformations that change rounding (Winograd, Strassen, weights of 16 or 17 bits for a few
            rows, split products, contraction of products, 4-ulp functions, inexact rewrite rules). Rules have an error
            of at most 1e-5 of the largest intermediate value in float32, and 4e-3 in float16.
        memory: ``low``: products read large constant weights where they lie, without a packed copy.
        memory_reuse: let intermediate values with disjoint lifetimes share memory (memory colouring).
        num_threads: worker threads of a run; 0: as many as the process may use.
        disabled_passes: names of passes to leave out.
        packing_growth: bytes by which transformed weights (Winograd's) may exceed the model's own, in total.
        tuning: chooses the solvers of contractions; None: the cost model chooses.
        float32_matmul_precision: one of `FLOAT32_PRECISIONS`; None: follows ``fast_math``. See `precision`.
        store: object store of compiled kernels; None: the user's.
        offload_copy: copy results to the host; otherwise they stay on the device.
        device_id: number of the device.
    """

    fast_math: bool = True
    memory: str | None = None
    memory_reuse: bool = True
    num_threads: int = 0
    disabled_passes: tuple[str, ...] = ()
    packing_growth: int = 48 << 20
    float32_matmul_precision: str | None = None
    tuning: Tuning | None = field(default=None, compare=False)
    store: Store | None = field(default=None, compare=False)
    offload_copy: bool = True
    device_id: int = 0

    @property
    def precision(self) -> str:
        """The least precision, one of `FLOAT32_PRECISIONS`, of float32 products and convolutions.

        ``highest`` allows no method that changes rounding. ``high`` also allows Winograd and the like, and three
        products in a narrower type: bfloat16 with AMX, TF32 on a GPU. ``medium`` is one product in the narrower type.
        On a CPU constant weights are bfloat16 then; their left-hand sides are too, wherever the CPU has an instruction
        for bfloat16 products.
        """
        return self.float32_matmul_precision or ("high" if self.fast_math else "highest")
