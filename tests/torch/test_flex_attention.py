"""PyTorch's flexible attention, beside eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from mgx_numba.torch.backend import mgx_numba  # noqa: E402
from mgx_numba.torch.fx import lower_to_mgx  # noqa: E402

from .exported import check, module_of  # noqa: E402
from .models import agree  # noqa: E402

LENGTH = 24
DOCUMENTS = torch.tensor([0] * 10 + [1] * 14)
SLOPES = torch.tensor([0.5, -0.25, 0.1, 1.0])


def _mask(mask_mod: Callable[..., Any]) -> Any:
    return create_block_mask(mask_mod, 1, 1, LENGTH, LENGTH, device="cpu")


CAUSAL = _mask(lambda b, h, i, j: i >= j)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plain": flex_attention,
    "distances": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1),
    "slopes of heads": lambda q, k, v: flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + SLOPES[h] * (j - i), block_mask=CAUSAL
    ),
    "soft cap": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5)),
    "causal": lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL, return_lse=True),
    "documents": lambda q, k, v: flex_attention(
        q, k, v, block_mask=_mask(lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j]), scale=0.5
    ),
    "rows without keys": lambda q, k, v: flex_attention(
        q, k, v, block_mask=_mask(lambda b, h, i, j: (i >= j) & (i != 5)), return_lse=True
    ),
    "grouped heads": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], block_mask=CAUSAL, enable_gqa=True),
    "heads behind positions": lambda q, k, v: (
        flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).flatten(2) + 1
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_flexible_attention_is_compiled_whole(name: str, programs: list[Any], caplog: Any) -> None:
    function, inputs = FUNCTIONS[name], [torch.randn(2, 4, LENGTH, 8) for _ in range(3)]
    found = torch.compile(function, backend=mgx_numba, options={"target": "ref"})(*inputs)
    expected = function(*inputs)
    agree(found, expected)
    first = (found, expected) if isinstance(found, torch.Tensor) else (found[0], expected[0])
    assert first[0].stride() == first[1].stride()
    assert len(programs) == 1
    assert "PyTorch runs" not in caplog.text


@torch.no_grad()
def test_flexible_attention_is_exported() -> None:
    inputs = [torch.randn(2, 4, LENGTH, 8) for _ in range(3)]
    check(FUNCTIONS["slopes of heads"], inputs)
    module = module_of(FUNCTIONS["causal"])
    agree(lower_to_mgx(module, inputs)(*inputs), module(*inputs))
