"""Key and value caches in device memory that is input and result of a run."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.api.device import device_argument
from mgx_numba.api.placing import StandingCall
from mgx_numba.errors import IndexRangeError, ParameterError
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.session import InferenceSession, OrtValue

from ..session.test_shared_caches import STEPS, caches, decoder, step


def test_caches_on_the_device_are_updated_in_place(where: str) -> None:
    model = decoder(1).SerializeToString()
    reference = mgx.parse_onnx_buffer(model).compile("cpu")
    program = mgx.parse_onnx_buffer(model).compile("gpu", offload_copy=False)
    own = caches(2, 12, 1, np.float32)
    there = {name: mgx.to_gpu(array) for name, array in own.items()}
    for number, (ends, s, total) in enumerate(STEPS):
        feeds = step(ends, s, total, False, number, np.float32)
        past = {f"past_key_values.{name}": array for name, array in own.items()}
        wanted = reference.run({**feeds, **past}, {f"present.{name}": array for name, array in own.items()})
        given = {name: mgx.to_gpu(array) for name, array in feeds.items()}
        given |= {f"past_key_values.{name}": array for name, array in there.items()}
        y, *present = program.run(given, {f"present.{name}": array for name, array in there.items()})
        assert [a.data_ptr() for a in present] == [a.data_ptr() for a in there.values()]
        for row, end in enumerate(ends):
            found = np.asarray(mgx.from_gpu(y))[row, : min(s, end)]
            np.testing.assert_allclose(found, wanted[0][row, : min(s, end)], atol=1e-5)
        for name, array in own.items():
            np.testing.assert_allclose(mgx.from_gpu(there[name]), array, rtol=1e-5, atol=1e-5)


def test_a_session_on_a_device_updates_bound_caches(where: str) -> None:
    model = decoder(1).SerializeToString()
    session = InferenceSession(model, providers=["CUDAExecutionProvider"])
    wanted = mgx.parse_onnx_buffer(model).compile("cpu")
    own = caches(1, 12, 1, np.float32)
    values = {name: OrtValue.ortvalue_from_numpy(array, "cuda") for name, array in own.items()}
    binding = session.io_binding()
    for number, (end, s) in enumerate(((3, 3), (4, 1))):
        feeds = step([end], s, end, False, number, np.float32)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y", "cuda")
        for name, value in values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        session.run_with_iobinding(binding)
        past = {f"past_key_values.{name}": array for name, array in own.items()}
        y, *_ = wanted.run({**feeds, **past}, {f"present.{name}": array for name, array in own.items()})
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], y, atol=1e-5)
        for name, array in own.items():
            np.testing.assert_allclose(values[name].numpy(), array, atol=1e-6)


def test_a_result_in_the_memory_of_another_input_is_refused(where: str) -> None:
    program = mgx.parse_onnx_buffer(decoder(1).SerializeToString()).compile("gpu", offload_copy=False)
    feeds = {name: mgx.to_gpu(array) for name, array in step([3], 1, 3, False, 0, np.float32).items()}
    there = {name: mgx.to_gpu(array) for name, array in caches(1, 12, 1, np.float32).items()}
    past = {f"past_key_values.{name}": array for name, array in there.items()}
    with pytest.raises(ParameterError, match="share memory on the device"):
        program.run({**feeds, **past}, {"present.0.key": there["0.value"]})


@pytest.mark.parametrize("in_place", [True, False])
def test_a_recorded_call_copies_caches_unless_they_stay(where: str, in_place: bool) -> None:
    model = decoder(1).SerializeToString()
    program = mgx.parse_onnx_buffer(model).compile("gpu", offload_copy=False)
    own = caches(1, 12, 1, np.float32)
    feeds = step([7], 1, 7, False, 3, np.float32)
    past = {f"past_key_values.{name}": array for name, array in own.items()}
    there = {name: mgx.to_gpu(array) for name, array in own.items()}
    kept = there if in_place else {name: mgx.to_gpu(np.full_like(array, np.nan)) for name, array in own.items()}
    given = {name: mgx.to_gpu(array) for name, array in feeds.items()}
    given |= {f"past_key_values.{name}": array for name, array in there.items()}
    held = StandingCall(program, given, {f"present.{name}": array for name, array in kept.items()}).held()
    assert held is not None
    on = engine(0)
    with on.use():
        queue = on.queue(0)
        recording = queue.recorded(lambda: held.enqueue(queue))
        for _ in range(2):  # the same rows are written again
            recording(queue)
        queue.wait()
    held.raise_fault()
    wanted, *present = mgx.parse_onnx_buffer(model).compile("cpu").run({**feeds, **past})
    np.testing.assert_allclose(mgx.from_gpu(device_argument.wrap(held.results[0])), wanted, atol=1e-5)
    for array, name in zip(present, own, strict=True):
        np.testing.assert_allclose(mgx.from_gpu(kept[name]), array, rtol=1e-5, atol=1e-5)


def test_a_recorded_call_tells_of_an_index_out_of_range(where: str) -> None:
    program = mgx.program()
    module = program.get_main_module()
    table = module.add_parameter("table", mgx.shape(type="float_type", lens=[4, 8]))
    rows = module.add_parameter("rows", mgx.shape(type="int64_type", lens=[2]))
    module.add_return([module.add_instruction(mgx.op("gather", axis=0), [table, rows])])
    program.compile("gpu", offload_copy=False)
    given = {"table": mgx.to_gpu(np.ones((4, 8), np.float32)), "rows": mgx.to_gpu(np.array([3, 5]))}
    held = StandingCall(program, given, {}).held()
    assert held is not None
    on = engine(0)
    with on.use():
        queue = on.queue(0)
        queue.recorded(lambda: held.enqueue(queue))(queue)
        queue.wait()
        with pytest.raises(IndexRangeError, match="index 5 is out of range"):
            held.raise_fault()
