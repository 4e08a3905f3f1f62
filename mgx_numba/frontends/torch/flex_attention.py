"""PyTorch's ``flex_attention``, traced as its products and its softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import flex_attention
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.nn.attention.flex_attention import _vmap_for_bhqkv


@contextmanager
def plain_flex_attention() -> Iterator[None]:
    """Let traces have ATen's operators in the place of ``flex_attention``, with its functions of scores and masks."""
    table = flex_attention.python_key_table
    own = table[FunctionalTensorMode]
    table[FunctionalTensorMode] = _traced
    try:
        yield
    finally:
        table[FunctionalTensorMode] = own


def _traced(mode: FunctionalTensorMode, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    with mode:
        return _attention(*args)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any],
    scale: float,
    _: object,
    score_buffers: Sequence[object] = (),
    mask_buffers: Sequence[object] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return attention, and of each row the logarithm to base 2 of the sum, and the largest score in its units.

    The axes of attention lie in memory in the order of those of ``query``, the last one innermost.
    """
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = [torch.arange(n, device=scores.device) for n in scores.shape]
    masks = _vmap_for_bhqkv(block_mask[-1], prefix=(), suffix=(None,) * len(mask_buffers))
    changes = _vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))
    with TransformGetItemToIndex():
        kept, changed = masks(*places, *mask_buffers), changes(scores, *places, *score_buffers)
    scores = torch.where(kept, changed, -math.inf)
    out = torch._safe_softmax(scores, -1).to(query.dtype) @ value
    order = [*sorted(range(out.dim() - 1), key=lambda axis: -query.stride(axis)), out.dim() - 1]
    placed = out.permute(order).contiguous().permute(sorted(order, key=order.__getitem__))
    return placed, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)
