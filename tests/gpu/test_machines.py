"""Which solver, tile and split-K factor each machine's record chooses, without a device."""

from __future__ import annotations

from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.solvers import choose
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request

PROBLEMS = {
    "square": (4096, 4096, 4096, "float16"),
    "few tiles": (512, 2048, 8192, "float16"),
    "small": (128, 768, 768, "float16"),
    "a row": (1, 4096, 4096, "float16"),
    "float32": (512, 512, 512, "float32"),
}
CHOSEN: dict[str, dict[str, str]] = {}


def choice(rows: int, columns: int, depth: int, dtype: str) -> str:
    """Return the solver, and the rows, columns and split-K factor of its tile, for a product of one element type."""
    problem = GemmProblem(rows, columns, depth, types=ElementTypes(*[dtype] * 4), b_strides=(1, depth))
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, precision="highest")
    solver = choose(contraction).solver
    if solver.name == "few_rows":
        return solver.name
    if solver.name == "warpgroup":
        tile, splits = solver.chosen(contraction), solver.chosen(contraction).splits
    else:
        tile, splits = solver.tile(contraction, None)
    return f"{solver.name} {tile.rows}x{tile.columns} /{splits}"
