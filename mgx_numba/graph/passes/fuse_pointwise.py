"""Pointwise fusion: connected elementwise operations of one shape become one ``pointwise`` instruction."""

from __future__ import annotations

from ...core.dim import known_same
from ...environment import environment_flag
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import MAX_NODES, extract, open_values, order_of, unfusable

MAX_RESULTS = 4
"""Most results per cluster; each is a store stream, and a core has few write buffers. No figures kept."""


class FusePointwise(Pass):
    """Cluster pointwise operations, each cluster computed by one kernel with one or more results.

    An operation joins the cluster of its users if all of them are in it. Otherwise it joins as a further result (one
    read of its inputs instead of two), unless a path leads from an outside user back into the cluster.
    ``MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION`` and ``MIGRAPHX_DISABLE_POINTWISE_FUSION`` limit clusters to one result, or
    to one operation.
    """

    name = "fuse_pointwise"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        cluster_of: dict[Instruction, list[Instruction]] = {}
        clusters: list[list[Instruction]] = []
        for ins in reversed(list(module)):
            if not ins.op.pointwise or ins.module_args:
                continue
            reason = unfusable(ins)
            if reason is not None:
                self.log.refuse(self.name, ins, reason)
                continue
            home = self._find_cluster(ins, cluster_of, order)
            if home is None:
                home = []
                clusters.append(home)
            home.append(ins)
            cluster_of[ins] = home
        for cluster in sorted(filter(None, clusters), key=lambda c: max(map(order.__getitem__, c))):
            cluster.sort(key=order.__getitem__)
            self.log.apply(self.name, cluster[-1])
            extract(program, module, cluster, make_op("pointwise"), "pointwise", scalar=True)

    def _find_cluster(
        self, ins: Instruction, cluster_of: dict[Instruction, list[Instruction]], order: dict[Instruction, int]
    ) -> list[Instruction] | None:
        if environment_flag("MIGRAPHX_DISABLE_POINTWISE_FUSION"):
            self.log.refuse(self.name, ins, "MIGRAPHX_DISABLE_POINTWISE_FUSION is set")
            return None
        homes: dict[int, list[Instruction]] = {}
        outside = False
        for user in ins.users:
            home = cluster_of.get(user)
            if home is None or not _same_axes(home[0], ins):
                outside = True
                if home is not None:
                    self.log.refuse(self.name, ins, f"a user's cluster is over {home[0].shape}")
            else:
                homes[id(home)] = home
        found = sorted(homes.values(), key=len, reverse=True)
        if len(found) == 1 and not outside and len(found[0]) < MAX_NODES:
            return found[0]
        if found and environment_flag("MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION"):
            self.log.refuse(self.name, ins, "MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION is set")
            return None
        if len(found) > 1 and not _refused(joined := [i for home in found for i in home], ins, order):
            for home in found[1:]:
                found[0].extend(home)
                for member in home:
                    cluster_of[member] = found[0]
                home.clear()
            found[0][:] = joined
            return found[0]
        for home in found:
            reason = _refused(home, ins, order)
            if reason is None:
                return home
            self.log.refuse(self.name, ins, reason)
        return None


def _same_axes(a: Instruction, b: Instruction) -> bool:
    """Return whether values have the same lengths, and neither or both are without axes."""
    return known_same(a.shape.lens, b.shape.lens) and a.shape.without_axes == b.shape.without_axes


def _refused(home: list[Instruction], ins: Instruction, order: dict[Instruction, int]) -> str | None:
    """Return the reason why an instruction cannot join a cluster of users; None if it can."""
    if len(home) >= MAX_NODES:
        return f"the cluster of its user has {len(home)} operations already"
    if len(open_values([*home, ins])) > MAX_RESULTS:
        return f"the cluster of its user would have more than {MAX_RESULTS} results"
    return "a path leads from it out of its user's cluster and back" if _reenters(ins, home, order) else None


def _reenters(ins: Instruction, home: list[Instruction], order: dict[Instruction, int]) -> bool:
    """Return whether a path leads from ``ins`` through instructions outside the cluster back into it.

    The fused instruction is placed at the cluster's last member, so an outside user before it is refused, too.
    """
    members = {*home, ins}
    last = max(order[i] for i in home)
    return any(user not in members and order.get(user, last) < last for i in members for user in i.users)
