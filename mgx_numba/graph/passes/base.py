"""Pass infrastructure: passes, the operators that they start from, options, and running a list of passes over a
program.

A pass rewrites one module at a time and keeps the program's meaning; it is idempotent. The program's log records
rewrites and refusals. Environment variables are MIGraphX's: ``MIGRAPHX_DISABLE_PASSES`` (names, comma-separated),
``MIGRAPHX_TRACE_PASSES`` (print the program after each pass), ``MIGRAPHX_TIME_PASSES`` (print each pass's time),
``MIGRAPHX_TRACE_MATCHES`` (print log entries) and others, see ``docs/environment.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import ClassVar

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...environment import environment_flag, environment_words
from ...errors import CompileError, OptionError, ValidationError
from ...interrupts import handlers_later
from ...messages import DEBUG, tell, warn
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from ..rewrite_log import RewriteLog
from .capabilities import Capabilities

KERNEL_OPERATORS = frozenset(
    (
        "pointwise fused_reduce split_fused_reduce fused_concat fused_contraction fused_attention fused_gather "
        "fused_scatter"
    ).split()
)
"""Operators whose submodules are kernel bodies: they are compiled, not rewritten."""


CONTRACTIONS = ("dot", "convolution")
"""Operators whose right-hand side may be weights."""

CONTROL_FLOW = frozenset(("if", "if_short", "loop"))
"""Operators whose submodules are programs of their own."""

LOWERING_STEPS = frozenset({"memory_coloring"})
"""Named lowering steps that can be disabled like passes."""


@dataclass(frozen=True)
class Options:
    """Assumptions that passes may make.

    Attributes:
        fast_math: whether inexact rules apply, see `RewriteRule`.
        capabilities: the target's capabilities; passes that need them do nothing without.
        attention_refusal: reason why no kernel computes attention for (element type, key features, value features), ""
            if one does; None: kernels compute all.
        epilogue_types: element types of contractions whose kernels have an epilogue.
        later: selects control flow whose bodies are optimised later, when their lengths are known.
    """

    fast_math: bool = False
    capabilities: Capabilities | None = None
    attention_refusal: Callable[[Type, int, int], str] | None = None
    epilogue_types: tuple[Type, ...] = (Type.float_type, Type.double_type)
    later: Callable[[Instruction], bool] | None = None

    @functools.cached_property
    def exact(self) -> Options:
        """Return these options with ``fast_math=False``, for rules that are exact."""
        return dataclasses.replace(self, fast_math=False) if self.fast_math else self

    @property
    def reads_blocks(self) -> bool:
        """Whether the target has kernels for ``matmul_nbits``."""
        return self.capabilities is not None and self.capabilities.block_weights


class Pass:
    """A named program rewrite; a subclass sets ``name`` and defines ``apply`` (or ``run``)."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if cls.name:
            KNOWN[cls.name] = cls

    @functools.cached_property
    def log(self) -> RewriteLog:
        """Return the log of rewrites and refusals of all runs."""
        return RewriteLog()

    def apply(self, program: Program, module: Module, options: Options) -> None:
        """Rewrite one module in place."""
        raise NotImplementedError(f"pass {self.name!r} has no apply")

    def run(self, program: Program, options: Options) -> None:
        """Rewrite every module of a program, inner modules first, except kernel bodies and bodies optimised later."""
        for module in _rewritten(program, options.later):
            self.apply(program, module, options)

    def note(self, ins: Instruction, reason: str) -> None:
        """Log that the pass refuses to rewrite an instruction, and why."""
        self.log.refuse(self.name, ins, reason)

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


KNOWN: dict[str, type[Pass]] = {}


class _Needless(Pass):
    """A pass of MIGraphX that has nothing to change here."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def run(self, program: Program, options: Options) -> None:
        """Change nothing."""


class _WhenNeeded(Pass):
    """A pass that is imported when a program has an operator that the pass needs."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def run(self, program: Program, options: Options) -> None:
        """Run the pass, unless the program has no operator that it needs."""
        if not is_needless(self.name, program):
            own = make_pass(self.name)
            own.log = self.log
            own.run(program, options)


def known_passes() -> list[str]:
    """Return the names of all passes, sorted."""
    _load(_files())
    return sorted(KNOWN)


def make_pass(name: str) -> Pass:
    """Return a pass by name, with default settings.

    A name of MIGraphX's that the IR does not need gives a pass that changes nothing, with a warning that says why.

    Raises:
        OptionError: the name is unknown; the message lists the known names.
    """
    if name in NEEDLESS:
        warn(f"pass {name} has no effect: {NEEDLESS[name]}")
        return _Needless(name)
    name = OTHER_NAMES.get(name, name)
    _load([name])
    cls = KNOWN.get(name)
    if cls is None:
        raise OptionError(f"unknown pass {name!r}; known: {', '.join(known_passes())}")
    return cls()


def _load(names: Iterable[str]) -> None:
    """Import the files of passes, each named as its pass; interrupts are raised afterwards."""
    missing = [name for name in names if name not in KNOWN and name in _files()]
    if missing:
        with handlers_later():
            for name in missing:
                importlib.import_module(f"{__package__}.{name}")


@functools.cache
def _files() -> frozenset[str]:
    """Names of this package's modules."""
    return frozenset(module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)]))


def _rewritten(program: Program, later: Callable[[Instruction], bool] | None) -> list[Module]:
    """Return the modules that passes rewrite, inner ones first; see `Options.later`."""
    changes = tuple([module.changes for module in program.modules])
    if program.only_bodies == changes:
        return [program.main]
    modules = program.reachable_modules()
    bodies = kernel_modules(modules)
    found = [module for module in reversed(modules) if id(module) not in bodies]
    if found == [program.main]:
        program.only_bodies = changes
    elif later is not None:
        put_off = _later_modules(modules, later)
        found = [module for module in found if id(module) not in put_off]
    return found


def kernel_modules(modules: Sequence[Module]) -> set[int]:
    """Return the identities of kernel bodies and of all modules inside them."""
    found: set[int] = set()
    if len(modules) == 1:
        return found
    for module in modules:
        for ins in module.running():
            if ins.name in KERNEL_OPERATORS:
                for body in ins.module_args:
                    found.add(id(body))
                    found.update(map(id, body.submodules()))
    return found


def _later_modules(modules: Sequence[Module], later: Callable[[Instruction], bool]) -> set[int]:
    """Return the identities of control flow bodies that passes skip, and of all modules inside them."""
    running = [ins for module in modules for ins in module.running() if ins.name in CONTROL_FLOW]
    found = dict.fromkeys(body for ins in running if later(ins) for body in ins.module_args)
    return {id(module) for body in found for module in (body, *body.submodules())}


@np.errstate(all="ignore")
def run_passes(
    program: Program,
    passes: Sequence[Pass | str],
    options: Options | None = None,
    *,
    disabled: Iterable[str] = (),
    trace: Callable[[str, Program], None] | None = None,
    timings: MutableMapping[str, float] | None = None,
    validate: bool = False,
) -> None:
    """Run passes in order over all modules of a program, in place; results keep their ranks.

    Overflow and NaN in constants cause no warning. A pass that is given by name is imported only if the program has an
    operator that the pass needs (`NEEDED`).

    Args:
        program: the program to rewrite.
        passes: passes, or names of passes.
        options: what the passes may assume; defaults to ``Options()``.
        disabled: names of passes to skip, beside those that the environment names.
        trace: called with the name of each pass and the program after it.
        timings: receives the seconds spent in each pass, by name.
        validate: check the invariants of the IR after each pass.

    Raises:
        OptionError: a pass name is unknown, or an environment variable has an invalid value.
        CompileError: a pass failed; the message names it, the cause is chained.
        ValidationError: ``validate`` is set and a pass broke an invariant; the message names the pass.
    """
    _load(p for p in passes if isinstance(p, str) and p not in NEEDED)
    steps = [p if isinstance(p, Pass) else _WhenNeeded(p) if p in NEEDED else make_pass(p) for p in passes]
    left_out = _disabled(disabled, steps)
    settings = options or Options()
    print_program = environment_flag("MIGRAPHX_TRACE_PASSES") or environment_flag("MIGRAPHX_TRACE_COMPILE")
    print_time = environment_flag("MIGRAPHX_TIME_PASSES")
    for step in steps:
        if step.name in left_out:
            continue
        start = time.perf_counter()
        try:
            _run_logged(step, program, settings)
        except OptionError:
            raise
        except Exception as error:
            raise CompileError(f"pass {step.name!r} failed: {error}") from error
        seconds = time.perf_counter() - start
        if timings is not None:
            timings[step.name] = timings.get(step.name, 0.0) + seconds
        tell("passes", DEBUG, "pass %s: %.3f ms", step.name, seconds * 1e3)
        if print_time:
            print(f"{step.name}: {seconds * 1e3:.6g}ms")
        if print_program:
            print(f"Pass: {step.name}\n{program}")
        if trace is not None:
            trace(step.name, program)
        if validate:
            from ..validate import validate as validate_program  # late: for tests

            try:
                validate_program(program)
            except ValidationError as error:
                raise ValidationError(f"after pass {step.name!r}: {error}") from error


def _run_logged(step: Pass, program: Program, settings: Options) -> None:
    """Run a pass with its log forwarded to the program's log."""
    step.log.parent = program.log
    try:
        step.run(program, settings)
    finally:
        step.log.parent = None
        step.log.close()
        program.log.close()


_SWITCHES = {
    "schedule": ("MIGRAPHX_DISABLE_SCHEDULE_PASS", False),
    "layout_convolution": ("MIGRAPHX_ENABLE_NHWC", True),
    "rewrite_layernorm": ("MIGRAPHX_ENABLE_LAYERNORM_FUSION", True),
}
"""Environment variable, and its default, for each pass that has its own switch."""


def disabled_names(names: Iterable[str] = ()) -> set[str]:
    """Return the names of passes to skip: ``names``, the passes in ``MIGRAPHX_DISABLE_PASSES``, and the passes that
    variables of their own switch off."""
    switched = (name for name, (variable, usual) in _SWITCHES.items() if environment_flag(variable, usual) != usual)
    return {*names, *environment_words("MIGRAPHX_DISABLE_PASSES"), *switched}


def _disabled(names: Iterable[str], steps: Sequence[Pass]) -> set[str]:
    wanted = disabled_names(names)
    if not wanted:
        return wanted
    known = {*known_passes(), *(s.name for s in steps), *LOWERING_STEPS}
    wanted = {OTHER_NAMES.get(name, name) for name in wanted}
    unknown = wanted - known - NEEDLESS.keys()
    if unknown:
        text = f"unknown pass {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}"
        if not unknown <= set(environment_words("MIGRAPHX_DISABLE_PASSES")):
            raise OptionError(f"cannot disable {text}")
        warn(f"MIGRAPHX_DISABLE_PASSES: {text}")  # MIGraphX has other passes, and ignores names that it does not know
    return wanted


_CONVOLUTIONS = frozenset("convolution convolution_backwards quant_convolution quant_convolution_backwards".split())
_INTEGER_PRODUCTS = frozenset("integer_dot quant_dot integer_convolution quant_convolution".split())
_PAIRS = frozenset({"quantizelinear", "dequantizelinear"})
_SUMS = frozenset({"quant_dot", "quant_convolution", "quant_convolution_backwards"})

NEEDED: Mapping[str, frozenset[str]] = {
    "eliminate_pad": frozenset({"pad"}),
    "fuse_attention": frozenset({"attention", "softmax"}),
    "fuse_matmul_nbits": frozenset({"dequantizelinear", "matmul_nbits"}),
    "layout_convolution": _CONVOLUTIONS | {"pooling"},
    "merge_rnn_outputs": frozenset({"rnn", "gru", "lstm"}),
    "pad_convolutions": _CONVOLUTIONS,
    "rewrite_float8": frozenset({"dequantizelinear"}),
    "rewrite_gelu": frozenset({"erf", "exp", "sigmoid", "tanh"}),
    "rewrite_layernorm": frozenset({"pow", "sqdiff", "sqrt"}),
    "rewrite_pooling": frozenset({"pooling"}),
    "rewrite_quantization": _PAIRS | _SUMS | {"unpack_int4", "unpack_fp4"},
    "rewrite_resize": frozenset({"resize"}),
    "rewrite_rnn": frozenset({"rnn", "gru", "lstm", "recurrent"}),
    "rewrite_softmax": frozenset({"exp", "softmax"}),
    "simplify_qdq": _PAIRS | _INTEGER_PRODUCTS,
    "sink_shuffle": _CONVOLUTIONS,
}
"""Operators by the name of a pass that changes only programs with at least one of these operators."""


def is_needless(name: str, program: Program) -> bool:
    """Return whether the program has no operator that the pass ``name`` needs."""
    needed = NEEDED.get(name)
    return needed is not None and not any(module.has(needed) for module in program.modules)


_ALLOCATION = "memory of results is planned when the program is lowered (`memory_coloring`)"
_CONCAT = "when the program is lowered, kernels get the parts of a concatenation as the place of their results"

_FLOAT8 = "kernels convert every float8 type"

OTHER_NAMES = {"eliminate_dead_code": "dead_code_elimination", "layout_nhwc": "layout_convolution"}
"""Other names that versions of MIGraphX have for passes."""

NEEDLESS: dict[str, str] = {
    "adjust_allocation": _ALLOCATION,
    "auto_contiguous": "kernels read operands of any strides, so no copies have to be inserted",
    "eliminate_allocation": _ALLOCATION,
    "eliminate_concat": _CONCAT,
    "eliminate_fp8": _FLOAT8,
    "fp8_ocp_to_fnuz": _FLOAT8,
    "fuse_concat": _CONCAT,
    "fuse_horizontal": "each look-up is a step of its own",
    "fuse_pointwise_reduce": "`fuse_pointwise` and `fuse_reduce` are applied one by one",
    "insert_pad": "convolutions and pooling take padding that differs between the sides",
    "memory_coloring": _ALLOCATION,
    "preallocate_param": _ALLOCATION,
    "promote_literals": "constants may be in any module",
    "propagate_precision": "kernels hold intermediate values of 16 bits and fewer in float32",
    "replace_allocate": _ALLOCATION,
    "rewrite_dot": "a 1x1 convolution is computed as a product by a solver",
    "rewrite_low_precision": "a power of 2 is a product in every type",
    "rewrite_topk": "topk has a kernel for any length",
    "simplify_dyn_ops": "lengths are inferred when an instruction is added",
    "split_single_dyn_dim": "one plan serves all lengths of a range",
    "write_literals": "constants are part of the plan",
}
"""Why the IR does not need a pass of MIGraphX, by its name."""
