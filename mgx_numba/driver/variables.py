"""Table of the environment variables of MIGraphX and of this package, with their effect here.

``docs/environment.md`` is generated from this table (``python -m tests.project.environment``), and the driver reports
from it which of the set variables have an effect.
"""

from __future__ import annotations

import logging
import os

from ..dataclass import dataclass


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        name: without the prefix ``MIGRAPHX_``; in full for variables of this package and of other libraries. ``*`` at
            the end stands for the rest of any name.
        text: its effect, or why it has none.
        works: whether it has an effect here.
    """

    name: str
    text: str
    works: bool = True

    @property
    def full_name(self) -> str:
        """Return the name of the variable in the environment."""
        return self.name if self.name.startswith(("MGX_", *LIBRARIES)) else f"MIGRAPHX_{self.name}"


LIBRARIES = ("MIOPEN_", "ROCMLIR_", "ROCBLAS_", "HIPBLASLT_", "TENSILE_")
"""Prefixes of variables of the libraries that MIGraphX calls."""


def _idle(name: str, text: str) -> Variable:
    return Variable(name, text, works=False)


NO_MLIR = "There is no MLIR here: kernels are printed in Python and compiled by Numba and LLVM."
_CK = "There is no Composable Kernel here: contractions are this package's own solvers."
_MIOPEN = "There is no MIOpen here: convolutions and pooling are this package's own kernels."
_BLAS = "There is no rocBLAS, hipBLASLt or Tensile here: products are this package's own kernels."
_FLASH = "Attention is one kernel that never writes the score matrix; how rows are shared follows from the threads."

GROUPS: dict[str, tuple[Variable, ...]] = {
    "Traces and times": (
        Variable(
            "TRACE_EVAL",
            "1 prints each step of a run and its time, 2 adds kinds of numbers, the ends of results and statistics, "
            "3 all elements. Read when a program is compiled or loaded.",
        ),
        Variable("TRACE_PASSES", "Prints the program after each pass."),
        Variable("TIME_PASSES", "Prints how long each pass took."),
        Variable("TRACE_MATCHES", "Prints each rewrite as it is applied or refused, with the reason."),
        Variable("TRACE_MATCHES_FOR", "The same for rules with one of these words (comma-separated) in their names."),
        Variable("TIME_MATCHERS", "Prints how long the pattern of each rewrite rule was looked for."),
        Variable("VALIDATE_MATCHES", "Checks the module after each rewrite; an error names the rule."),
        Variable("TRACE_FINALIZE", "Prints each instruction as it is lowered, with the steps that it becomes."),
        Variable("TRACE_COMPILE", "Prints the program, the program after each pass, and where each kernel is from."),
        Variable("TRACE_ONNX_PARSER", "Prints each ONNX node with the values that it became."),
        Variable("TRACE_QUANTIZATION", "Prints the program after each pass of `quantize_*`."),
        Variable(
            "8BITS_QUANTIZATION_PARAMS", "Prints scale, zero point and errors of each layer that is put in 8 bits."
        ),
        Variable("TRACE_ELIMINATE_CONTIGUOUS", "Prints the inputs that are taken without a copy."),
        Variable("TRACE_PROPAGATE_CONSTANT", "Prints each instruction that is replaced by its value."),
        Variable("TRACE_SCHEDULE", "Prints the order of instructions, and the memory for which it was chosen."),
        Variable("DEBUG_MEMORY_COLORING", "Prints where each buffer lies in the arena, and during which steps."),
        Variable(
            "TRACE_BENCHMARKING",
            "While tuning, 1 prints the fastest of each problem, 2 also the candidates, 3 also each sample.",
        ),
        Variable("TRACE_NARY", "Prints each kernel of a pointwise cluster as it is planned."),
    ),
    "Passes and rewrites": (
        Variable("DISABLE_PASSES", "Leaves out passes by name (comma-separated), and `memory_coloring`."),
        Variable("DISABLE_POINTWISE_FUSION", "Each pointwise operation is a kernel of its own."),
        Variable("DISABLE_REDUCE_FUSION", "Each reduction is a kernel of its own."),
        Variable("DISABLE_MULTI_OUTPUT_FUSION", "A pointwise cluster has one result."),
        Variable("DISABLE_SCHEDULE_PASS", "Leaves out the pass `schedule`."),
        Variable("ENABLE_NHWC", "0 leaves out `layout_convolution`; channels-last is what is done without it."),
        Variable("ENABLE_LAYERNORM_FUSION", "0 leaves out `rewrite_layernorm`, which is done without it."),
        Variable("SPLIT_REDUCE_SIZE", "Elements from which a reduction may be made in parts; -1 keeps all whole."),
        _idle("USE_FAST_SOFTMAX", "Softmax is one kernel; the largest value is always subtracted."),
        _idle("DISABLE_FP32_SOFTMAX", "Sums are always made in float32."),
        _idle("DISABLE_FP16_INSTANCENORM_CONVERT", "Normalisations are always computed in float32."),
        _idle("ENABLE_REWRITE_DOT", "A 1x1 convolution is computed as a product by a solver, without a rewrite."),
        _idle("REWRITE_LRN", "LRN has a kernel of its own."),
        _idle("ENABLE_FULL_DYNAMIC", "Any number of dynamic dimensions works without it."),
        _idle("COPY_LITERALS", "Constants are never copied on the CPU, and once to a GPU."),
        _idle("FLASH_DECODING_ENABLED", _FLASH),
        _idle("FLASH_DECODING_NUM_SPLITS", _FLASH),
        _idle("FLASH_DECODING_MIN_CHUNK_SIZE", _FLASH),
        _idle("FLASH_DECODING_MAX_SPLITS", _FLASH),
        _idle("FLASH_DECODING_THRESHOLD", _FLASH),
    ),
    "Tuning": (
        Variable(
            "PROBLEM_CACHE", "A file of tuning records (JSON or SQLite) that is read, and takes what is measured."
        ),
        Variable("MLIR_TUNE_EXHAUSTIVE", "As the option `exhaustive_tune`, of all kernels that have choices."),
        Variable("MLIR_TUNE_LIMIT", "Solvers, and blockings of one solver, that are measured at the most."),
        _idle("ENABLE_GEMM_TUNING", "`exhaustive_tune` measures products, too; rocBLAS is not used."),
        _idle("ENABLE_HIP_GEMM_TUNING", "`exhaustive_tune` measures products, too; hipBLASLt is not used."),
        _idle("MLIR_TUNING_DB", f"{NO_MLIR} Records are in `MIGRAPHX_PROBLEM_CACHE`."),
        _idle("MLIR_TUNING_CFG", f"{NO_MLIR} The driver's `tune --export` writes the problems as JSON."),
        _idle("MLIR_ENABLE_SPLITK", "Whether sums are made in parts is a solver's choice."),
        _idle("TUNE_CK", _CK),
        _idle("SET_GEMM_PROVIDER", "Kernels are this package's; tuning measures cuBLASLt and cuDNN beside them."),
    ),
    "What is written down": (
        Variable("GPU_DUMP_SRC", "Prints the Python source of each kernel, on any target."),
        Variable("GPU_DUMP_ASM", "Prints the assembly of each kernel, on any target."),
        Variable("VERIFY_DUMP_DIFF", "The driver's `verify` prints the elements that differ."),
        Variable("VERIFY_ENABLE_ALLCLOSE", "The driver's `verify` compares element by element, too."),
        Variable("TRACE_CMD_EXECUTE", "Prints the commands of the processes that compile kernels."),
        _idle("GPU_DUMP_BENCHMARK_MXR", "`read --trim N --trim-size M -o part.mxr` cuts out a part to be measured."),
        _idle("DEBUG_SAVE_TEMP_DIR", "Nothing is compiled by way of temporary files."),
    ),
    "GPU streams and compilers": (
        Variable("GPU_COMPILE_PARALLEL", "Processes that compile kernels for the CPU, at the most."),
        _idle("NSTREAMS", "A program's launches are one recorded graph; calls run beside one another."),
        _idle("ENABLE_NULL_STREAM", "`run_async` takes the stream; `run` comes in order with the default one."),
        _idle("GPU_OPTIMIZE", "Kernels have one level of optimisation."),
        _idle(
            "GPU_DEBUG",
            "Kernels check indices; the tests' interpreter finds races and wrong accesses.",
        ),
        _idle("GPU_DEBUG_SYM", "Kernels have no debug symbols; `MIGRAPHX_GPU_DUMP_SRC` prints their source."),
        _idle("GPU_HIP_FLAGS", "HIP's compiler is not used."),
    ),
    "Of libraries that MIGraphX calls, and its own debugging": (
        Variable("LOG_LEVEL", "The driver's `--log-level`: none, error, warn, info, debug, trace, or 0 to 5."),
        Variable("SKIP_BENCHMARKING", "Nothing is measured, also where `exhaustive_tune` asks for it."),
        _idle("BENCHMARKING_BUNDLE", "How often a sample runs follows from how long it takes."),
        _idle("BENCHMARKING_NRUNS", "How many samples are taken follows from their noise."),
        _idle("CK_DEBUG", _CK),
        _idle("ENABLE_CK", _CK),
        _idle("ENABLE_CK_WORKAROUNDS", _CK),
        _idle("LOG_CK_GEMM", _CK),
        _idle("DISABLE_MIOPEN_FUSION", _MIOPEN),
        _idle("ENABLE_MIOPEN_POOLING", _MIOPEN),
        _idle("DISABLE_DNNL_POST_OPS_WORKAROUND", "There is no DNNL here."),
        _idle("DISABLE_MLIR", NO_MLIR),
        _idle("ENABLE_EXTRA_MLIR", NO_MLIR),
        _idle("ENABLE_MLIR_GEG_FUSION", NO_MLIR),
        _idle("ENABLE_MLIR_INPUT_FUSION", NO_MLIR),
        _idle("ENABLE_MLIR_REDUCE_FUSION", NO_MLIR),
        _idle("MLIR_DUMP", f"{NO_MLIR} `MIGRAPHX_GPU_DUMP_SRC` prints kernels."),
        _idle("MLIR_DUMP_TO_MXR", NO_MLIR),
        _idle("MLIR_USE_SPECIFIC_OPS", f"{NO_MLIR} `MIGRAPHX_DISABLE_PASSES` leaves out fusions."),
        _idle("TRACE_HIPRTC", "HIP's run-time compiler is not used; `MIGRAPHX_TRACE_COMPILE` tells of kernels."),
        _idle("TRACE_MLIR", NO_MLIR),
    ),
}
"""MIGraphX's variables by subject."""

OWN: tuple[Variable, ...] = (
    Variable("MGX_CACHE_DIR", "The folder of compiled kernels, plans and tuning records, in place of the platform's."),
    Variable(
        "MGX_SHIPPED_KERNELS",
        "The folder of kernels that ship with the package, in place of the package's; `0`: none is used, all are "
        "compiled.",
    ),
    Variable(
        "MGX_PLAN_CACHE",
        "0: compiled models are neither looked for in the cache folder nor kept there, only kernels are. So does "
        "`compile(plan_cache=False)` for one program.",
    ),
    Variable(
        "MGX_MACHINE",
        "The machine record of the CPU's cost model: a shipped one (`znver5`), `generic`, or a JSON file. If not set, "
        "a CPU model without a shipped record is measured once, for less than a second, at the first compilation.",
    ),
    Variable("MGX_NUM_THREADS", "Threads of a run, in place of as many as the process has cores."),
    Variable(
        "MGX_CPU_FEATURES",
        "Narrows the CPU's instruction set: `avx2`, `x86-64-v3`, or as LLVM spells it, `-fma`. `amx-emulated` stands "
        "for AMX's tiles, for tests.",
    ),
    Variable(
        "MGX_GPU_ARCH",
        "The architecture that kernels are compiled for in place of the device's: `sm_90a`, `gfx942`. The target `gpu` "
        "needs a device all the same: this is for kernels that are looked at.",
    ),
    Variable(
        "MGX_GPU_TOOLCHAIN",
        "Who makes PTX of kernels: `llvmlite`, as a rule, or `numba-cuda`: Numba's official CUDA target, of the extra "
        "`cuda`.",
    ),
    Variable(
        "DYNAMIC_SHAPE",
        "Of MIGraphX on DCUs. Needed only for a `ModelProto`: a program of a model in memory then keeps the model, so "
        "that `program.reshape` can give lengths up to those of `map_input_dims`. For a model's file `reshape` does so "
        "without the variable. Inputs with ranges run with any lengths in these.",
    ),
    Variable("MGX_DRIVER", "The command that C++ programs start to compile, in place of `mgx-numba-driver`."),
    _idle("MIOPEN_FIND_ENFORCE", f"{_MIOPEN} `exhaustive_tune` measures their choices."),
    _idle("MIOPEN_FIND_MODE", f"{_MIOPEN} `exhaustive_tune` measures their choices."),
    _idle("MIOPEN_USER_DB_PATH", f"{_MIOPEN} Records are in `MIGRAPHX_PROBLEM_CACHE`."),
    _idle("MIOPEN_*", _MIOPEN),
    _idle("ROCMLIR_*", NO_MLIR),
    *(_idle(f"{library}*", _BLAS) for library in LIBRARIES[2:]),
)
"""This package's own variables, including a ``MIGRAPHX_`` variable that MIGraphX does not have, and variables of
`LIBRARIES`, without effect."""

VARIABLES: dict[str, Variable] = {
    one.full_name: one for one in (*(v for group in GROUPS.values() for v in group), *OWN)
}
"""All variables by their names in the environment."""


PREFIXES = ("MIGRAPHX_", "MGX_", *LIBRARIES)


def report_environment(log: logging.Logger) -> None:
    """Log the variables that are set and have an effect; warn of set variables without effect, with the reason."""
    for name, value in sorted(os.environ.items()):
        if not name.startswith(PREFIXES):
            continue
        known = VARIABLES.get(name) or VARIABLES.get(f"{name.partition('_')[0]}_*")
        if known is not None and known.works:
            log.info("%s=%s", name, value)
        else:
            why = f": {known.text}" if known is not None else ": nobody reads it"
            log.warning("environment variable %s has no effect here%s", name, why)
