"""Every rewrite rule and every pass on tensors without elements, of one element and without axes.

Rules are found by walking through the package, so that a new one is tried, too.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import numpy as np
import pytest

from mgx_numba.graph import passes
from mgx_numba.graph.passes.base import NEEDED, Options, is_needless, make_pass, run_passes
from mgx_numba.graph.passes.match import RewriteRule, explain
from mgx_numba.graph.passes.rewriter import Rewriter, RuleIndex
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from .pattern_programs import LENS, matching_program, values_of
from .support import FAST, STRICT, assert_same

SEEDS = 2


@cache
def rules() -> dict[str, RewriteRule]:
    """Return all rules by module and name."""
    found = {}
    for module in pkgutil.walk_packages(passes.__path__, f"{passes.__name__}."):
        members = vars(importlib.import_module(module.name))
        own = module.name.removeprefix(f"{passes.__name__}.")
        found.update({f"{own}.{name}": rule for name, rule in members.items() if isinstance(rule, RewriteRule)})
    return {name: rule for name, rule in found.items() if rule.rewrite.__module__.endswith(name.rsplit(".", 1)[0])}


def same(before: Program, after: Program) -> None:
    """Check that a program is valid and has the values of another."""
    validate(after)
    values = values_of(before)
    with np.errstate(all="ignore"):
        assert_same(evaluate(before, values), evaluate(after, values), 1e-3, 1e-3)


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_rule_keeps_values_and_lengths(name: str) -> None:
    rule, matched = rules()[name], 0
    for lens in LENS:
        for seed in range(SEEDS):
            program = matching_program(rule, lens, seed)
            if program is None:
                continue
            matched += 1
            root = program.main.results()[0]
            if rule not in RuleIndex([rule]).candidates(root):
                assert rule.reads and explain([rule], root, FAST)[rule.name] == "does not fit"
            for options in (STRICT, FAST):
                after = program.clone()
                if Rewriter([rule]).run(after.main, options):
                    same(program, after)
    assert matched, "no program of tests/passes/pattern_programs.py matches the rule's pattern"


@pytest.mark.parametrize("name", sorted(rules()))
def test_all_passes_keep_values_and_lengths(name: str) -> None:
    for seed, lens in enumerate(LENS[1::2]):
        program = matching_program(rules()[name], lens, seed)
        if program is not None:
            after = program.clone()
            run_passes(after, PASSES, Options(fast_math=seed % 2 == 0), validate=True)
            same(program, after)


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_pass_changes_nothing_without_the_operators_that_it_needs(name: str) -> None:
    for seed, lens in enumerate(LENS[2::3]):
        program = matching_program(rules()[name], lens, seed)
        for needless in NEEDED if program is not None else ():
            if program is not None and is_needless(needless, program):
                before, own = str(program), make_pass(needless)
                own.run(program, FAST)
                assert str(program) == before and not own.log.refusals(), needless
