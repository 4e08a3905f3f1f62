"""Rule engine: apply rules until none matches, and check every rewrite."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ...core.dim import hint, known_equal, known_same
from ...core.shape import Shape
from ...environment import environment_flag
from ...errors import CompileError, ValidationError
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from ..rewrite_log import Refusal, RewriteLog
from .base import Options, Pass
from .build import RewriteBuilder
from .match import RewriteRule, explain


class RuleIndex:
    """Rules by what they may match at.

    Attributes:
        roots: names of the operators at which any rule starts.
    """

    def __init__(self, rules: Iterable[RewriteRule]) -> None:
        self._starting: dict[str, list[RewriteRule]] = {}
        for rule in rules:
            for name in rule.pattern.names:
                self._starting.setdefault(name, []).append(rule)
        self.roots = frozenset(self._starting)
        self._found: dict[tuple[str, ...], tuple[RewriteRule, ...]] = {}

    def candidates(self, ins: Instruction) -> tuple[RewriteRule, ...]:
        """Return the rules whose patterns the names of an instruction and of its inputs do not rule out, in order."""
        names = (ins.op.name, *[value.op.name for value in ins.inputs])
        found = self._found.get(names)
        if found is None:
            found = tuple([rule for rule in self._starting.get(names[0], ()) if rule.may_match(*names)])
            self._found[names] = found
        return found


REVISIT_DEPTH = 3
"""Distance along users of a changed instruction that are revisited: about the depth of patterns."""


class Rewriter:
    """Apply rules to a module.

    Instructions are visited in program order; instructions near a rewrite are visited again, until nothing changes. New
    values must have the type and shape of the replaced ones (strides may differ). Dead producers are removed at once,
    so that "has a single user" holds when it seems to. Instructions with dynamic shapes, and those with empty results,
    are skipped.

    ``MIGRAPHX_TIME_MATCHERS`` prints each rule's time, ``MIGRAPHX_VALIDATE_MATCHES`` checks the module after each
    rewrite.
    """

    def __init__(self, rules: RuleIndex | Iterable[RewriteRule]) -> None:
        self._rules = rules if isinstance(rules, RuleIndex) else RuleIndex(rules)
        self._seconds: dict[str, float] | None = {} if environment_flag("MIGRAPHX_TIME_MATCHERS") else None
        self._validates = environment_flag("MIGRAPHX_VALIDATE_MATCHES")

    def run(self, module: Module, options: Options, log: RewriteLog | None = None, once: bool = False) -> int:
        """Rewrite until no rule applies, or sweep over the module ``once``; return the number of rewrites.

        Raises:
            ValidationError: ``MIGRAPHX_VALIDATE_MATCHES`` is set and a rule broke the module; the message names it.
        """
        total = self._rewrite(module, options, RewriteLog() if log is None else log, once)
        for name, seconds in (self._seconds or {}).items():
            print(f"Matcher {name} at {module.name}: {seconds * 1e3:.6g}ms")
        return total

    def _rewrite(self, module: Module, options: Options, log: RewriteLog, once: bool) -> int:
        budget = 1000 + 20 * len(module)
        total = 0
        while True:
            count = self._sweep(module, options, log, budget - total)
            total += count
            if total >= budget:
                log.exhausted = True
                return total
            if not count or once:
                return total

    def _sweep(self, module: Module, options: Options, log: RewriteLog, budget: int) -> int:
        roots = self._rules.roots
        pending = deque(module.named(roots))
        waiting = set(pending)
        count = 0
        while pending and count < budget:
            ins = pending.popleft()
            waiting.discard(ins)
            candidates = self._rules.candidates(ins)
            if not candidates or ins.module is not module or ins is module.last or _is_dynamic(ins) or _is_empty(ins):
                continue
            touched = self._visit(module, ins, candidates, options, log)
            if touched is None:
                continue
            count += 1
            for other in touched:
                if other.op.name in roots and other not in waiting and other.module is module:
                    waiting.add(other)
                    pending.append(other)
        return count

    def _visit(
        self, module: Module, ins: Instruction, rules: Iterable[RewriteRule], options: Options, log: RewriteLog
    ) -> list[Instruction] | None:
        for candidate in rules:
            start = time.perf_counter() if self._seconds is not None else 0.0
            match = candidate.find(ins, options)
            if self._seconds is not None:
                seconds = time.perf_counter() - start
                self._seconds[candidate.name] = self._seconds.get(candidate.name, 0.0) + seconds
            if match is None:
                continue
            reason = candidate.refusal(match)
            if reason is None:
                builder = RewriteBuilder(module, ins)
                result = candidate.rewrite(match, builder)
                if result is not None and not isinstance(result, str):
                    patch = result if isinstance(result, dict) else {ins: result}
                    if not all(_same_rank(old.shape, new.shape) for old, new in patch.items()):
                        result = "a scalar would become a vector of one element, or the reverse"
                    elif any(_differs_as_expression(old.shape, new.shape) for old, new in patch.items()):
                        result = "lengths are the same numbers, but other expressions"
                    else:
                        log.apply(candidate.name, ins, forget=True)
                        touched = _apply(module, candidate.name, patch, builder)
                        if self._validates:
                            _validate(module, candidate.name)
                        return touched
                builder.discard()
                reason = result
            if reason is not None:
                log.refuse(candidate.name, ins, reason)
        return None


def _validate(module: Module, rule: str) -> None:
    from ..validate import validate_module  # late: for developers

    try:
        validate_module(module)
    except ValidationError as error:
        raise ValidationError(f"after rule {rule!r}: {error}") from error


def _is_dynamic(ins: Instruction) -> bool:
    for value in (ins, *ins.inputs):  # noqa: SIM110  (a generator takes twice as long)
        if value.shape.dyn_dims:
            return True
    return False


def _is_empty(ins: Instruction) -> bool:
    return bool(ins.shape.lens) and known_equal(ins.shape.elements, 0)


def _same_rank(old: Shape, new: Shape) -> bool:
    """Return whether shapes have the same rank, where a scalar ``{1}, {0}`` counts as rank 0 for some operators
    (gather, unsqueeze)."""
    return len(old.lens) != 1 or not known_equal(old.lens[0], 1) or old.scalar == new.scalar


def _differs_as_expression(old: Shape, new: Shape) -> bool:
    """Return whether symbolic lengths are equal for the hints but not provably equal."""
    if not (old.symbolic or new.symbolic) or _same_value_shape(old, new) or len(old.lens) != len(new.lens):
        return False
    return old.type is new.type and all(hint(a) == hint(b) for a, b in zip(old.lens, new.lens))


def _same_value_shape(old: Shape, new: Shape) -> bool:
    if old.sub_shapes or new.sub_shapes:
        return len(old.sub_shapes) == len(new.sub_shapes) and all(
            map(_same_value_shape, old.sub_shapes, new.sub_shapes)
        )
    return old.type is new.type and known_same(old.lens, new.lens) and old.dyn_dims == new.dyn_dims


def _apply(
    module: Module, name: str, patch: Mapping[Instruction, Instruction], builder: RewriteBuilder
) -> list[Instruction]:
    symbols = tuple(dict.fromkeys(s for old in patch for s in old.debug_symbols))
    for new in builder.created:
        if not new.is_literal:
            new.debug_symbols = symbols
    touched = list(builder.created)
    for old, new in patch.items():
        if not _same_value_shape(old.shape, new.shape):
            raise CompileError(f"rule {name!r} turned {old!r} into {new!r}: type or lengths changed")
        if new.debug_symbols != symbols and not (new.is_literal or new.is_param):
            new.debug_symbols = tuple(dict.fromkeys((*new.debug_symbols, *old.debug_symbols)))
        module.replace_instruction(old, new)
        touched.append(new)
    frontier = list(patch.values())
    for _ in range(REVISIT_DEPTH):
        frontier = [user for ins in frontier for user in ins.users][:64]
        touched.extend(frontier)
    survivors = remove_dead(module, [*patch, *builder.created])
    for ins in survivors:
        touched.append(ins)
        if len(ins.users) == 1:
            touched.extend(ins.users)
    return list(dict.fromkeys(touched))


def remove_dead(module: Module, candidates: Iterable[Instruction]) -> list[Instruction]:
    """Remove unused candidates, and then their inputs likewise.

    Parameters, results of the module and instructions of other modules stay.

    Returns:
        inputs of removed instructions that are still used.
    """
    pending = list(candidates)
    survivors: list[Instruction] = []
    while pending:
        ins = pending.pop()
        if ins.module is not module:
            continue
        if ins.users or isinstance(ins.op, (Parameter, Return)) or ins is module.last or ins.module_args:
            survivors.append(ins)
            continue
        inputs = list(dict.fromkeys(ins.inputs))
        module.remove_instruction(ins)
        pending.extend(inputs)
    return survivors


class RulePass(Pass):
    """A pass defined by a list of rules; ``log`` records rewrites and refusals, ``explain`` gives reasons."""

    rules: ClassVar[Sequence[RewriteRule]] = ()
    index: ClassVar[RuleIndex]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.index = RuleIndex(cls.rules)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.rewrite(module, options)

    def rewrite(self, module: Module, options: Options, once: bool = False) -> int:
        """Apply the rules to one module, as `Rewriter.run`; return the number of rewrites."""
        return Rewriter(self.index).run(module, options, self.log, once)

    def explain(self, ins: Instruction, options: Options | None = None) -> dict[str, str]:
        """Return, for each rule that could start at an instruction, the reason why it does not apply (or
        ``"applies"``)."""
        return explain(self.rules, ins, options or Options())

    def refusals(self, rule: str | None = None) -> list[Refusal]:
        """Return the matches that were refused so far, with reasons."""
        return self.log.refusals(rule)


def rule_pass(name: str, *rules: RewriteRule) -> type[RulePass]:
    """Return the class of the pass ``name``, which applies the rules until none matches."""
    return type(name, (RulePass,), {"name": name, "rules": rules, "__module__": f"{__package__}.{name}"})
