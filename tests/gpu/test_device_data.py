"""Data on a device, real or interpreted: MIGraphX's functions, ``offload_copy=False``, zero-copy exchange."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.driver.library import missing
from mgx_numba.core import dlpack
from mgx_numba.errors import DeviceError, ParameterError, ShapeError
from mgx_numba.runtime.gpu.engines import engine

from ..interpreter.engine import interpreted
from .device_data import Interfaced, Packed, close, numbers, one_input, softmax_of_sum, wanted

TYPES = ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool", "complex64"]
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [*TYPES, *NARROW])
@pytest.mark.parametrize("lens", [(), (1,), (0, 3), (7, 5, 3)])
def test_copies_to_a_device_and_back_are_equal(where: str, dtype: Any, lens: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2, lens).astype(dtype)
    there = mgx.to_gpu(values)
    back = mgx.from_gpu(there)
    assert back.dtype == values.dtype and back.shape == values.shape
    assert back.tobytes() == values.tobytes()
    assert there.get_shape() == mgx.argument(values).get_shape() and there.device_id() == 0


def test_strides_nan_and_infinity_are_copied(where: str) -> None:
    values = np.array([[1, np.nan, np.inf], [-np.inf, 0, -0.0]], np.float32)
    np.testing.assert_array_equal(mgx.from_gpu(mgx.to_gpu(values.T)), values.T)
    np.testing.assert_array_equal(mgx.from_gpu(mgx.to_gpu(values[:, ::2])), values[:, ::2])
    wide = np.broadcast_to(values[:1], (4, 3))
    np.testing.assert_array_equal(mgx.from_gpu(mgx.to_gpu(wide)), wide)
    pinned = mgx.to_gpu(values, host=True)
    assert isinstance(pinned, mgx.argument)
    np.testing.assert_array_equal(pinned, values)
    assert mgx.allocate_gpu(mgx.shape(lens=[2, 2]), host=True).shape == (2, 2)
    again = mgx.from_gpu(values)
    assert again.ctypes.data != values.ctypes.data
    np.testing.assert_array_equal(again, values)


def test_a_tensor_of_a_device_is_no_array(where: str) -> None:
    there = mgx.to_gpu(np.arange(4, dtype=np.float32))
    with pytest.raises(ShapeError, match=r"lies on device 0; from_gpu\(...\) copies it"):
        np.asarray(there)
    assert there.tolist() == [0, 1, 2, 3] and "device 0" in repr(there)
    assert there == mgx.to_gpu(np.arange(4, dtype=np.float32)) and there != mgx.to_gpu(np.ones(4, np.float32))
    with pytest.raises(ShapeError, match="dynamic"):
        mgx.allocate_gpu(mgx.shape(dyn_dims=[mgx.shape.dynamic_dimension(1, 4)]))
    mgx.gpu_sync()


def test_an_address_is_of_the_host_or_of_a_device(where: str) -> None:
    values = np.arange(6, dtype=np.float32)
    there, shape = mgx.to_gpu(values), mgx.shape(lens=[2, 3])
    for view in (mgx.argument_from_pointer(shape, there.data_ptr()), mgx.gpudata_to_argument(shape, there.data_ptr())):
        assert isinstance(view, mgx.device_argument)
        np.testing.assert_array_equal(mgx.from_gpu(view), values.reshape(2, 3))
    assert isinstance(mgx.argument_from_pointer(shape, values.ctypes.data), mgx.argument)
    with pytest.raises(ShapeError, match="is in no memory of a device"):
        mgx.gpudata_to_argument(shape, values.ctypes.data)
    with pytest.raises(ShapeError, match="positive integer"):
        mgx.gpudata_to_argument(shape, 0)


def test_results_stay_on_the_device(where: str) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    assert model.get_parameter_names() == ["x", "y", "main:#output_0", "main:#output_1"]
    for seed in range(3):  # other addresses each time
        x, y = numbers(seed)
        feed: dict[str, Any] = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
        close(model.run(feed), wanted(x, y))
        memory = {
            name: mgx.allocate_gpu(shape)
            for name, shape in model.get_parameter_shapes().items()
            if name.startswith("main:")
        }
        results = model.run({**feed, **memory, "other": 1})
        assert [r.data_ptr() for r in results] == [memory[f"main:#output_{k}"].data_ptr() for k in range(2)]
        close(results, wanted(x, y))
        close(model.run({**feed, "main:#output_1": memory["main:#output_1"]}), wanted(x, y))


def test_data_of_a_device_goes_into_a_program_whose_results_do_not(where: str) -> None:
    model = softmax_of_sum().compile("gpu")
    assert model.get_parameter_names() == ["x", "y"]
    for seed in range(3):
        x, y = numbers(seed)
        for feed in ({"x": mgx.to_gpu(x), "y": y}, {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}, {"x": x, "y": y}):
            results = model.run(feed)
            assert all(isinstance(r, mgx.argument) for r in results)
            close(results, wanted(x, y))


def test_what_does_not_fit_is_told(where: str) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    there = mgx.to_gpu(y)
    for feed, message in (
        ({"x": x, "y": there}, r"parameter x: it lies in host memory, .*offload_copy=False; to_gpu\(...\) copies it"),
        ({"x": mgx.to_gpu(x[:2]), "y": there}, r"Incorrect shape .*parameter: x should be"),
        ({"x": mgx.to_gpu(x.astype(np.float64)), "y": there}, r"Incorrect type .*parameter: x should be"),
        ({"x": there, "y": there, "main:#output_0": np.empty_like(x)}, r"parameter main:#output_0: it lies in host"),
        ({"x": there}, r"Parameter not found: y"),
        ({"x": there, "y": there, "main:#output_0": there}, "parameter x and result 0 share memory"),
        ({"x": Interfaced(there, strides=(4, 12)), "y": there}, r"expected elements in a row, as tensor.contiguous"),
    ):
        with pytest.raises(ParameterError, match=message):
            model.run(feed)
    close(model.run({"x": mgx.to_gpu(x), "y": there}), wanted(x, y))
    for target in ("cpu", "ref"):
        with pytest.raises(ParameterError, match=f"the program runs on the target {target}; from_gpu"):
            softmax_of_sum().compile(target).run({"x": there, "y": y})


@pytest.mark.parametrize("lens", [(1, 1), (0, 4), (5, 1), (4, 129)])
def test_odd_and_empty_shapes(where: str, lens: tuple[int, ...]) -> None:
    model = softmax_of_sum(lens).compile("gpu", offload_copy=False)
    for seed in range(2):
        x, y = numbers(seed, lens)
        close(model.run({"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}), wanted(x, y) if x.size else [x, y])


def test_addresses_between_two_vectors(where: str) -> None:
    model = softmax_of_sum((4, 8)).compile("gpu", offload_copy=False)
    x, y = numbers(0, (4, 8))
    there = mgx.to_gpu(np.concatenate([np.zeros(1, np.float32), x.ravel()]))
    shape = mgx.shape(lens=[4, 8])
    odd = mgx.gpudata_to_argument(shape, there.data_ptr() + 4)
    close(model.run({"x": odd, "y": mgx.to_gpu(y)}), wanted(x, y))
    close(model.run_async({"x": odd, "y": mgx.to_gpu(y)}, 0, "cudaStream_t"), wanted(x, y))
    memory = mgx.allocate_gpu(mgx.shape(lens=[40]))
    between = mgx.gpudata_to_argument(shape, memory.data_ptr() + 8)
    with pytest.raises(ParameterError, match="result 0 starts at .*, expected a multiple of 16 bytes"):
        model.run({"x": mgx.to_gpu(x), "y": mgx.to_gpu(y), "main:#output_0": between})


def test_products_read_other_addresses_each_time(where: str) -> None:
    """The copy engine's descriptions hold addresses, too."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 64)).astype(np.float16)

    def product(main: Any, x: Any) -> list[Any]:
        return [main.add_instruction(mgx.op("dot"), [x, main.add_literal(weights)])]

    model = one_input(product, "half", [64, 64]).compile("gpu", offload_copy=False)
    for _ in range(2):
        x = rng.standard_normal((64, 64)).astype(np.float16)
        (result,) = model.run({"x": mgx.to_gpu(x)})
        expected = x.astype(np.float32) @ weights.astype(np.float32)
        np.testing.assert_allclose(np.asarray(mgx.from_gpu(result), np.float32), expected, atol=0.05, rtol=1e-2)


def test_parameters_are_row_major_whatever_their_shape_says(where: str) -> None:
    made = mgx.program()
    main = made.get_main_module()
    x = main.add_parameter("x", mgx.shape(lens=[3, 5], strides=[1, 3]))
    main.add_return([main.add_instruction(mgx.op("add"), [x, x])])
    made.compile("gpu", offload_copy=False)
    values = numbers(0)[0]
    there = mgx.to_gpu(values)
    close(made.run({"x": there}), [2 * values])
    turned = mgx.gpudata_to_argument(mgx.shape(lens=[3, 5], strides=[1, 3]), there.data_ptr())
    with pytest.raises(ParameterError, match="expected elements in a row"):
        made.run({"x": turned})


def test_results_whose_shape_the_host_tells_and_scalars(where: str) -> None:
    def found(main: Any, x: Any) -> list[Any]:
        total = main.add_instruction(mgx.op("reduce_sum", axes=[0, 1]), [x])
        return [main.add_instruction(mgx.op("nonzero"), [x]), main.add_instruction(mgx.op("squeeze"), [total])]

    model = one_input(found, "float", [3, 4]).compile("gpu", offload_copy=False)
    values = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
    for run in (model.run, lambda feed: model.run_async(feed, 0, "cudaStream_t")):
        indices, total = run({"x": mgx.to_gpu(values)})
        on_cpu = one_input(found, "float", [3, 4]).compile("cpu").run({"x": values})
        np.testing.assert_array_equal(np.asarray(mgx.from_gpu(indices)), np.asarray(on_cpu[0]))
        back = mgx.from_gpu(total)
        assert back.shape == on_cpu[1].shape and float(back.sum()) == values.sum()


def test_dynamic_lengths(where: str) -> None:
    made = mgx.program()
    main = made.get_main_module()
    dims = [mgx.shape.dynamic_dimension(1, 8), mgx.shape.dynamic_dimension(4, 4)]
    x = main.add_parameter("x", mgx.shape(dyn_dims=dims))
    main.add_return([main.add_instruction(mgx.op("softmax", axis=1), [x])])
    made.compile("gpu", offload_copy=False)
    assert made.get_parameter_names() == ["x"]
    for rows in (2, 5, 2):
        values, zero = numbers(rows, (rows, 4))[0], np.zeros((rows, 4), np.float32)
        close(made.run({"x": mgx.to_gpu(values)}), wanted(values, zero)[:1])


def test_tensors_of_other_libraries_are_read_in_place(where: str) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    packed = Packed(mgx.to_gpu(x))
    close(model.run({"x": packed, "y": Interfaced(mgx.to_gpu(y))}), wanted(x, y))
    model.run_async({"x": packed, "y": packed}, 0, "cudaStream_t")
    assert packed.streams == [1, 1, 1]  # the default stream, as DLPack counts them
    borrowed = mgx.device_argument(packed)
    assert borrowed.data_ptr() == packed.holder.data_ptr() and borrowed.get_shape().lens() == [3, 5]
    copied = mgx.to_gpu(packed)
    assert copied.data_ptr() != borrowed.data_ptr() and copied == borrowed
    packed.requires_grad = True
    with pytest.raises(ParameterError, match=r"parameter x: .*tensor.detach\(\)"):
        model.run({"x": packed, "y": packed})
    with pytest.raises(ShapeError, match="the tensor is in host memory, expected one on a CUDA device"):
        mgx.device_argument(x)


def test_whoever_borrows_keeps_the_memory(where: str) -> None:
    there = mgx.to_gpu(np.arange(8, dtype=np.float32))
    packed = Packed(there)
    alive = weakref.ref(packed)
    borrowed = mgx.device_argument(packed)
    del packed, there
    gc.collect()
    assert alive() is not None and borrowed.tolist() == list(range(8))
    del borrowed
    gc.collect()
    assert alive() is None


def test_capsules_say_what_they_hold_and_let_it_go(where: str) -> None:
    before = len(dlpack.exported)
    for dtype, code, bits in ((np.float32, 2, 32), (np.int8, 0, 8), (np.bool_, 6, 8), (ml_dtypes.bfloat16, 4, 16)):
        there = mgx.to_gpu(np.ones((2, 3), dtype))
        capsule = there.__dlpack__(max_version=(1, 0))
        tensor = dlpack.tensor_of(capsule)
        assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (code, bits, 1)
        assert tensor.data == there.data_ptr() and tuple(tensor.device) == (2, 0)
        gc.collect()
        assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 3], [3, 1])
        assert len(dlpack.exported) == before + 1
        del capsule, tensor
        assert len(dlpack.exported) == before
    with pytest.raises(BufferError, match="without a copy"):
        there.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        there.__dlpack__(dl_device=(1, 0))
    with pytest.raises(AttributeError, match="DLPack exchanges it"):
        there.__cuda_array_interface__  # noqa: B018
    told = mgx.to_gpu(np.ones((2, 3), np.float16)).__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["strides"], told["version"]) == ((2, 3), "<f2", None, 3)


def test_results_whose_addresses_are_given_away_are_not_written_again(where: str) -> None:
    """Memory of a result goes to a later one when nothing refers to it; whoever borrows a tensor refers to it."""
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    kept = mgx.device_argument(Packed(model.run(feed)[0]))
    for seed in range(1, 4):
        a, b = numbers(seed)
        model.run({"x": mgx.to_gpu(a), "y": mgx.to_gpu(b)})
    np.testing.assert_allclose(np.asarray(mgx.from_gpu(kept)), wanted(x, y)[0], atol=1e-6)


def test_saved_programs_stay_on_the_device_that_they_are_loaded_for(tmp_path: Path) -> None:
    x, y = numbers(0)
    with interpreted(devices=2):
        mgx.save(softmax_of_sum().compile("gpu", offload_copy=False), tmp_path / "p.mxr")
        model = mgx.load(tmp_path / "p.mxr", device_id=1)
        feed = {"x": mgx.to_gpu(x, device_id=1), "y": mgx.to_gpu(y, device_id=1)}
        results = model.run(feed)
        assert [r.device_id() for r in results] == [1, 1]
        close(results, wanted(x, y))
        with pytest.raises(ParameterError, match="parameter x: it lies on device 0, expected device 1"):
            model.run({**feed, "x": mgx.to_gpu(x)})
        with pytest.raises(DeviceError, match="there is no device 2; there are 2"):
            softmax_of_sum().compile("gpu", device_id=2)
        with pytest.raises(mgx.MgxError, match="device_id must be the number of a device"):
            softmax_of_sum().compile("gpu", device_id=-1)


def test_a_watched_run_gives_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", "1")
    x, y = numbers(0)
    with interpreted():
        model = softmax_of_sum().compile("gpu", offload_copy=False)
        results = model.run({"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)})
        assert all(isinstance(r, mgx.device_argument) for r in results)
        close(results, wanted(x, y))
    assert "reduce_max_sub_exp" in capsys.readouterr().out


@pytest.mark.skipif(not missing(), reason="there is a device")
def test_without_a_device_the_functions_say_what_is_missing() -> None:
    for call in (
        lambda: mgx.to_gpu(np.zeros(2)),
        lambda: mgx.allocate_gpu(mgx.shape(lens=[2])),
        mgx.gpu_sync,
    ):
        with pytest.raises(DeviceError, match="driver"):
            call()
    with pytest.raises(ShapeError, match="no memory of a device"):
        mgx.gpudata_to_argument(mgx.shape(lens=[1]), np.zeros(1, np.float32).ctypes.data)


def test_memory_of_calls_does_not_grow() -> None:
    x, y = numbers(0)
    with interpreted():
        model = softmax_of_sum((1, 2)).compile("gpu", offload_copy=False)
        feed = {"x": mgx.to_gpu(x[:1, :2]), "y": mgx.to_gpu(y[:1, :2])}
        for run in (model.run, lambda given: model.run_async(given, 3, "cudaStream_t")):
            for _ in range(4):
                run(feed)
            there = len(engine()._arrays)  # type: ignore[attr-defined]
            for _ in range(20):
                run(feed)
            assert len(engine()._arrays) == there  # type: ignore[attr-defined]
