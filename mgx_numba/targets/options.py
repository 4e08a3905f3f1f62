"""Options of a compilation, for every target."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from ..dataclass import dataclass

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning

__all__ = ["FLOAT32_PRECISIONS", "TargetOptions"]

FLOAT32_PRECISIONS = ("highest", "high", "medium")
"""Of products of float32: as float32 has them; as three products of fewer bits, whose sum is within 1e-5; as one."""


@dataclass(frozen=True)
class TargetOptions:
    """What a compilation may do; a target that has no use for one ignores it.

    Attributes:
        fast_math: transformations that change rounding (Winograd, Strassen, weights of 16 or 17 bits for a few rows,
            products in parts, contraction of products, 4-ulp functions, rewrite rules that are not exact). Rules have
            an error of at most 1e-5 of the largest intermediate value in float32, and 4e-3 in float16.
        memory_reuse: memory colouring; without it every intermediate value has memory of its own.
        num_threads: worker threads of a run; 0 takes what the process may use.
        disabled_passes: names of passes to leave out.
        packing_growth: bytes by which transformed weights (Winograd's) may exceed the model's own, in all.
        tuning: what chooses the contractions' solvers; None leaves it to the cost model.
        float32_matmul_precision: one of `FLOAT32_PRECISIONS`; None goes by ``fast_math``. See `precision`.
        store: where compiled kernels are looked for; None takes the user's.
        offload_copy: results are copied to the host; otherwise they stay on the device.
        device_id: the number of the device.
    """

    fast_math: bool = True
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
        """Which of `FLOAT32_PRECISIONS` products and convolutions of float32 have at least.

        ``highest`` allows none of the methods for them that change rounding. ``high`` allows these, and three products
        of parts: in bfloat16 with AMX, in TF32 on a GPU. ``medium`` is one product in such a type: on a CPU constant
        weights are bfloat16 then, and what they multiply wherever that has an instruction for it.
        """
        return self.float32_matmul_precision or ("high" if self.fast_math else "highest")
