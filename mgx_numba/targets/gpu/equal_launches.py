"""Equal small launches in a row become one launch: the embedding tables of a recommendation network, for example."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ...codegen.gpu.kernel import NAME
from ...codegen.gpu.machine import multiprocessors
from ...codegen.kernel import KernelSource
from ...codegen.launch import Grid, Launch, Mark, Operand
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.steps import PendingStep, is_output

MOST_WORDS = 500
"""Most argument words of a launch: drivers before CUDA 12.1 take 4096 bytes ("Function Parameters", CUDA C++
programming guide)."""
BLOCKS = 2
"""Most blocks per multiprocessor of a launch that is joined: larger launches fill the device alone."""
_HEAD = re.compile(r"SLOTS = (\d+)\n")
_FAULT = re.compile(r"(note_fault\(\w+, \w+, )(\d+)")


def joined(steps: Sequence[PendingStep], apart: Collection[PendingStep]) -> list[PendingStep]:
    """Return the steps with runs of equal launches joined, except for the steps ``apart``."""
    kept = {id(step) for step in apart}
    found: list[PendingStep] = []
    run: list[PendingStep] = []
    most = BLOCKS * multiprocessors()
    for step in steps:
        if run and not _continues(run, step, kept):
            found.append(_one(run))
            run = []
        if run or (id(step) not in kept and _joins(step, most)):
            run.append(step)
        else:
            found.append(step)
    return [*found, _one(run)] if run else found


def _joins(step: PendingStep, most: int) -> bool:
    """Return whether a step may be joined with others: a small gather or cluster on one axis of blocks."""
    launch = step.launch
    if launch is None or not (step.problem is not None or step.instruction.name == "gather"):
        return False
    geometry, text = launch.geometry, launch.kernel.text
    if not isinstance(geometry, Grid) or geometry.cooperative or geometry.blocks[1:] != (1, 1):
        return False
    if not all(isinstance(arg, (int, Operand, Mark)) for arg in (*launch.args, *geometry.blocks)):
        return False
    used = "CLUSTER" in text or "block_index(1)" in text or "block_index(2)" in text
    return not used and geometry.blocks[0] <= most and launch.kernel.backend == NAME


def _continues(run: list[PendingStep], step: PendingStep, kept: Collection[int]) -> bool:
    """Return whether a step is a further launch of a run, independent of the others."""
    first, launch = run[0].launch, step.launch
    if first is None or launch is None or id(step) in kept or launch.kernel != first.kernel:
        return False
    if launch.geometry != first.geometry or step.instruction.name != run[0].instruction.name:
        return False
    if not all(isinstance(arg, (int, Operand, Mark)) for arg in launch.args):
        return False
    if (len(run) + 1) * len(launch.args) > MOST_WORDS:
        return False
    return all(_independent(other, step) for other in run)


def _independent(one: PendingStep, other: PendingStep) -> bool:
    """Return whether neither step writes elements that the other reads or writes."""
    for writer, reader in ((one, other), (other, one)):
        for view in _views(writer, True):
            if any(_same(view, read) for read in _views(reader, False)):
                return False
            if any(_same(view, written) and not _apart(view, written) for written in _views(reader, True)):
                return False
    return True


def _views(step: PendingStep, written: bool) -> Iterator[View]:
    return (view for name, view in step.operands.items() if is_output(name) is written)


def _same(a: View, b: View) -> bool:
    """Return whether two views are of the same buffer."""
    if a.buffer.region is Region.ARENA or b.buffer.region is Region.ARENA:
        return a.buffer is b.buffer
    return (a.buffer.region, a.buffer.index) == (b.buffer.region, b.buffer.index)


def _apart(a: View, b: View) -> bool:
    """Return whether two views with equal lengths and strides, like slices of a row, share no element: each axis steps
    over all of the axes below it, the distance of the views counted as an axis."""
    if a.lens != b.lens or a.strides != b.strides or a.type != b.type:
        return False
    between = abs(a.byte_offset - b.byte_offset)
    if between % a.type.size:
        return False
    axes = [(s, n) for n, s in zip(a.lens, a.strides) if n > 1]
    reach = 0
    for stride, length in sorted([*axes, (between // a.type.size, 2)]):
        if stride <= reach:
            return False
        reach += stride * (length - 1)
    return True


def _one(run: list[PendingStep]) -> PendingStep:
    """Return one step that does the work of a run."""
    if len(run) == 1:
        return run[0]
    launches = [step.launch for step in run if step.launch is not None]
    first = launches[0]
    assert isinstance(first.geometry, Grid)
    named = [
        replace(arg, name=f"{arg.name}.{k}") if isinstance(arg, Operand) else arg
        for k, launch in enumerate(launches)
        for arg in launch.args
    ]
    whole = Launch(
        kernel=_kernel(first.kernel, len(first.args), len(run), len(first.checks)),
        args=tuple(named),
        geometry=replace(first.geometry, blocks=(first.geometry.blocks[0], 1, len(run))),
        flops=sum(launch.flops for launch in launches),
        bytes=sum(launch.bytes for launch in launches),
        checks=tuple(check for launch in launches for check in launch.checks),
    )
    operands = {f"{name}.{k}": view for k, step in enumerate(run) for name, view in step.operands.items()}
    outputs = [view for step in run for view in step.outputs]
    return PendingStep(whole, operands, run[0].label, run[0].instruction, outputs=outputs)


@functools.lru_cache(maxsize=256)
def _kernel(kernel: KernelSource, slots: int, count: int, checks: int) -> KernelSource:
    """Return a kernel that does the work of ``count`` launches: one plane of blocks along grid axis 2 per launch."""
    head, body = kernel.text.split("def kernel(args):\n")
    head = _HEAD.sub(f"SLOTS = {slots * count}\n", head)
    body = re.sub(r"\bargs\b", "own_args", body)
    body = _FAULT.sub(rf"\1block_index(2) * {checks} + \2", body)
    text = f"{head}def kernel(args):\n    own_args = offset(args, block_index(2) * {slots})\n{body}"
    return KernelSource(NAME, f"{kernel.name.removesuffix('_kernel')}_times_{count}_kernel", text, kernel.origin)
