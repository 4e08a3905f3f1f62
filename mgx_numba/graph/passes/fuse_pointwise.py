"""Pointwise fusion: connected elementwise operations over the same lengths become one ``pointwise`` instruction."""

from __future__ import annotations

from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import MAX_NODES, extract, is_fusable_type, open_values, order_of

__all__ = ["FusePointwise"]


class FusePointwise(Pass):
    """Clusters of pointwise operations, each computed by one kernel that may have several results.

    An operation joins the cluster of its users when all of them are in it. When some are not, it joins anyway as a
    further result (one read of its inputs instead of two), unless a path leads from the outside user back into the
    cluster.
    """

    name = "fuse_pointwise"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        cluster_of: dict[Instruction, list[Instruction]] = {}
        clusters: list[list[Instruction]] = []
        for ins in reversed(list(module)):
            if not _is_fusable(ins):
                continue
            home = self._find_cluster(ins, cluster_of, order)
            if home is None:
                home = []
                clusters.append(home)
            home.append(ins)
            cluster_of[ins] = home
        for cluster in sorted(clusters, key=lambda c: max(map(order.__getitem__, c))):
            cluster.sort(key=order.__getitem__)
            extract(program, module, cluster, make_op("pointwise"), "pointwise", scalar=True)

    @staticmethod
    def _find_cluster(
        ins: Instruction, cluster_of: dict[Instruction, list[Instruction]], order: dict[Instruction, int]
    ) -> list[Instruction] | None:
        homes: dict[int, list[Instruction]] = {}
        outside = False
        for user in ins.users:
            home = cluster_of.get(user)
            if home is None:
                outside = True
            else:
                homes[id(home)] = home
        for home in homes.values():
            if len(home) >= MAX_NODES or home[0].shape.lens != ins.shape.lens:
                continue
            if len(homes) == 1 and not outside:
                return home
            if len(open_values([*home, ins])) <= 3 and not _reenters(ins, home, order):
                return home
        return None


def _is_fusable(ins: Instruction) -> bool:
    return (
        ins.op.pointwise
        and not ins.module_args
        and is_fusable_type(ins.shape)
        and all(is_fusable_type(i.shape) for i in ins.inputs)
    )


def _reenters(ins: Instruction, home: list[Instruction], order: dict[Instruction, int]) -> bool:
    """Whether some path leads from ``ins`` through instructions outside the cluster back into it.

    The fused instruction would stand at the cluster's last member, so an outside user before that place is refused too.
    """
    members = {*home, ins}
    last = max(order[i] for i in home)
    return any(user not in members and order.get(user, last + 1) < last for i in members for user in i.users)
