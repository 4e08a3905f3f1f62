"""Zero-copy exchange of tensors with PyTorch and CuPy, and the guides' snippets for data on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx

from .device_data import numbers, one_input, softmax_of_sum, wanted

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def test_tensors_of_torch(torch: Any) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    given = {"x": torch.from_numpy(x).cuda(), "y": torch.from_numpy(y).cuda()}
    for feed in (given, {**given, "main:#output_0": torch.empty(3, 5, device="cuda")}):
        results = [torch.from_dlpack(r) for r in model.run(feed)]
        for got, want in zip(results, wanted(x, y)):
            assert got.is_cuda
            np.testing.assert_allclose(got.cpu().numpy(), want, atol=1e-6)
    assert results[0].data_ptr() == feed["main:#output_0"].data_ptr()
    as_tensor = torch.as_tensor(model.run(given)[1], device="cuda")
    np.testing.assert_allclose(as_tensor.cpu().numpy(), x + y, atol=1e-6)
    with pytest.raises(migraphx.MgxError, match=r"tensor.contiguous\(\)"):
        model.run({**given, "x": torch.from_numpy(x.T.copy()).cuda().T})
    with pytest.raises(migraphx.MgxError, match=r"convert it, for instance by .to\(torch.float32\)"):
        model.run({**given, "x": given["x"].double()})
    half = one_input(lambda main, v: [main.add_instruction(migraphx.op("add"), [v, v])], "bf16", [4, 8])
    half.compile("gpu", offload_copy=False)
    value = torch.arange(32, device="cuda").reshape(4, 8).bfloat16()
    assert torch.equal(torch.from_dlpack(half.run({"x": value})[0]), value + value)
    assert torch.equal(torch.from_dlpack(migraphx.device_argument(value)), value)


def test_streams_of_torch(torch: Any) -> None:
    """Work of torch before and after a run, each in its own order, on inputs that are large enough to be late."""
    model = softmax_of_sum((512, 4096)).compile("gpu", offload_copy=False)
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    for seed in range(20):
        torch.manual_seed(seed)
        with torch.cuda.stream(side):
            x, y = (torch.randn(512, 4096, device="cuda") * 3 for _ in range(2))
            results = model.run_async({"x": x, "y": y}, side.cuda_stream, "cudaStream_t")
            here = torch.from_dlpack(results[0]) * 2
            expected = torch.softmax(x + y, -1) * 2
        with torch.cuda.stream(other):
            there = torch.from_dlpack(results[1]) + 1
        direct = torch.from_dlpack(model.run({"x": x, "y": y})[0])
        torch.cuda.synchronize()
        assert torch.allclose(here, expected, atol=1e-6)
        assert torch.allclose(there, x + y + 1, atol=1e-6) and torch.allclose(direct, expected / 2, atol=1e-6)


def test_loops_that_read_results_by_torch(torch: Any) -> None:
    """Memory of a result that torch still reads is not written by the next run."""
    model = softmax_of_sum((256, 2048)).compile("gpu", offload_copy=False)
    y = torch.zeros(256, 2048, device="cuda")
    wrong = 0
    for seed in range(50):
        torch.manual_seed(seed)
        x = torch.randn(256, 2048, device="cuda")
        result = torch.from_dlpack(model.run({"x": x, "y": y})[1])
        for _ in range(5):
            result = result * 1.0
        kept, x = result, x.clone()
        wrong += not torch.equal(kept, x)
    assert not wrong


def test_arrays_of_cupy(cupy: Any) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    given = {"x": cupy.asarray(x), "y": cupy.asarray(y)}
    results = model.run(given)
    for got, want in zip(results, wanted(x, y)):
        np.testing.assert_allclose(cupy.asnumpy(cupy.asarray(got)), want, atol=1e-6)
        np.testing.assert_allclose(cupy.asnumpy(cupy.from_dlpack(got)), want, atol=1e-6)
    assert cupy.asarray(results[0]).data.ptr == results[0].data_ptr()


def test_the_guides_snippet_for_data_on_a_device(torch: Any) -> None:
    """The guide's text, except for its indentation, which is not valid Python."""
    model = softmax_of_sum()
    inputName = model.get_parameter_names()[0]
    model.compile(t=migraphx.get_target("gpu"), offload_copy=False, device_id=0)
    parameterMap = {}
    parameter_shapes = model.get_parameter_shapes()
    for key in parameter_shapes.keys():  # noqa: SIM118
        parameterMap[key] = migraphx.to_gpu(migraphx.generate_argument(s=parameter_shapes[key]))
    image = numbers(0)[0]
    input_tensor = torch.from_numpy(image).to(torch.device("cuda"))
    parameterMap[inputName] = migraphx.gpudata_to_argument(
        shape=model.get_parameter_shapes()[inputName], address=input_tensor.data_ptr()
    )
    results = model.run(parameterMap)
    result = migraphx.from_gpu(results[0])
    assert result.get_shape().lens() == [3, 5] and result.get_shape().elements() == 15
    y = np.array(migraphx.generate_argument(s=parameter_shapes["y"]))
    np.testing.assert_allclose(np.array(result), wanted(image, y)[0], atol=1e-6)


def test_pointers_of_torch_in_its_stream(torch: Any) -> None:
    """The pattern of MIGraphX's examples: addresses of tensors, torch's stream, and one wait at the end."""
    model = softmax_of_sum()
    model.compile(migraphx.get_target("gpu"), offload_copy=False)
    tensors = {name: torch.empty(*s.lens(), device="cuda") for name, s in model.get_parameter_shapes().items()}
    arguments = {
        name: migraphx.argument_from_pointer(s, tensors[name].data_ptr())
        for name, s in model.get_parameter_shapes().items()
    }
    stream = torch.cuda.Stream()
    for seed in range(3):
        x, y = numbers(seed)
        with torch.cuda.stream(stream):
            tensors["x"].copy_(torch.from_numpy(x))
            tensors["y"].copy_(torch.from_numpy(y))
            model.run_async(arguments, stream.cuda_stream, "ihipStream_t")
        migraphx.gpu_sync()
        for k, want in enumerate(wanted(x, y)):
            np.testing.assert_allclose(tensors[f"main:#output_{k}"].cpu().numpy(), want, atol=1e-6)
