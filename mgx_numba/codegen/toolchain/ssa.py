"""Static single assignment as Numba makes it (by Choi et al., see "SSA-based Compiler Design", chapters 4 and 5),
statement by statement the same, for functions of many variables.

Numba goes through every statement of a function twice for each variable that is assigned more than once: over 51
kernels 3.7 s of the 13 s that it took to lower them. Going through those that mention the variable takes 0.9 s.

Importing this module imports Numba.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from numba.core import ir, ssa
from numba.core.analysis import compute_cfg_from_blocks

__all__ = ["reconstruct_ssa"]


def reconstruct_ssa(blocks: dict[int, ir.Block]) -> None:
    """Give every definition of a variable a name of its own, which what it reaches takes over; phi nodes are inserted
    where several reach. The bodies of the blocks are replaced."""
    cfg = compute_cfg_from_blocks(blocks)
    fronts = ssa._iterated_domfronts(cfg)
    scope, listed = ssa._get_scope(blocks), ssa._CacheListVars()
    mentioned = {label: [{v.name for v in s.list_vars()} for s in block.body] for label, block in blocks.items()}
    places: dict[str, list[int]] = {}
    for label, names in mentioned.items():
        for name in dict.fromkeys(name for own in names for name in own):
            places.setdefault(name, []).append(label)
    for name in ssa._find_defs_violators(blocks, cfg):
        definitions: dict[int, list[ir.Assign]] = defaultdict(list)
        states: dict[str, Any] = {"scope": scope, "varname": name, "defmap": definitions}
        _rewrite(blocks, mentioned, places[name], states, ssa._FreshVarHandler())
        phis: dict[int, list[ir.Assign]] = defaultdict(list)
        states |= {"phimap": phis, "cfg": cfg, "phi_locations": ssa._compute_phi_locations(fronts, definitions)}
        _rewrite(blocks, mentioned, places[name], states, ssa._FixSSAVars(listed))
        for label, nodes in phis.items():
            blocks[label].body = nodes + blocks[label].body
            mentioned[label] = [set() for _ in nodes] + mentioned[label]  # of nothing that is renamed after this


def _rewrite(
    blocks: dict[int, ir.Block],
    mentioned: dict[int, list[set[str]]],
    labels: list[int],
    states: dict[str, Any],
    handler: Any,
) -> None:
    """Let a handler of Numba replace the statements of some blocks that mention the variable of ``states``."""
    name = states["varname"]
    for label in labels:
        block = blocks[label]
        states |= {"label": label, "block": block}
        body = list(block.body)  # the handler looks for statements in the block as it was
        for k, names in enumerate(mentioned[label]):
            if name in names:
                statement = body[k]
                replace = handler.on_assign if isinstance(statement, ir.Assign) else handler.on_other
                body[k] = replace(states, statement)
        block.body = body
