"""The backend with the target ``gpu``, on the interpreter of the kernel language, whose tensors are the host's."""

from __future__ import annotations

from typing import Any

import torch

from mgx_numba.torch.backend import mgx_numba
from tests.gpu.device_data import place

from .models import Block, agree


@torch.no_grad()
def test_tensors_of_the_host_are_copied_to_a_device_and_back(programs: list[Any]) -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    with place("interpreter"):
        found = torch.compile(model, backend=mgx_numba, options={"target": "gpu"})
        agree(found(x), model(x))
        agree(found(x.t().contiguous().t()), model(x))
    assert len(programs) == 2
