"""Two devices of a machine: programs run on both at once, and the process's current CUDA device stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.driver.device import device_count
from mgx_numba.codegen.gpu.driver.library import missing

from ..running import at_once
from .device_data import close, numbers, softmax_of_sum, wanted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()) or device_count() < 2, reason="there is no second device"),
]


def _feed(seed: int, number: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    x, y = numbers(seed)
    return {"x": mgx.to_gpu(x, device_id=number), "y": mgx.to_gpu(y, device_id=number)}, wanted(x, y)


def test_programs_on_both_from_two_threads() -> None:
    models = [softmax_of_sum().compile("gpu", offload_copy=False, device_id=k) for k in range(2)]

    def work(number: int) -> None:
        for seed in range(100):
            feed, expected = _feed(seed, number)
            close(models[number].run(feed), expected)

    at_once(work, range(2))


def test_what_lies_on_the_other_device_is_told() -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False, device_id=1)
    feed, expected = _feed(0, 1)
    with pytest.raises(mgx.MgxError, match="parameter x: it lies on device 0, expected device 1"):
        model.run({**feed, "x": _feed(0, 0)[0]["x"]})
    close(model.run(feed), expected)
    pointer = mgx.argument_from_pointer(feed["x"].get_shape(), feed["x"].data_ptr())
    assert pointer.device_id() == 1
    close(model.run({**feed, "x": pointer}), expected)


def test_torch_keeps_its_current_device() -> None:
    torch = pytest.importorskip("torch")
    model = softmax_of_sum().compile("gpu", offload_copy=False, device_id=1)
    x, y = numbers(0)
    with torch.cuda.device(0):
        here = torch.ones(4, device="cuda")
        given = {name: torch.from_numpy(v).to("cuda:1") for name, v in (("x", x), ("y", y))}
        results = [torch.from_dlpack(r) for r in model.run(given)]
        assert torch.cuda.current_device() == 0 and torch.empty(1, device="cuda").device.index == 0
        assert [r.device.index for r in results] == [1, 1] and float(here.sum()) == 4
    for got, want in zip(results, wanted(x, y)):
        np.testing.assert_allclose(got.cpu().numpy(), want, atol=1e-6)
