"""A real cluster of several processes on this machine, with workers that are killed while they work."""

from __future__ import annotations

import builtins
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
import mgx_numba.ray
from mgx_numba.codegen.tuning.files import read_records
from mgx_numba.errors import OptionError
from mgx_numba.ray.rows import RowSession
from mgx_numba.session import InferenceSession, SessionOptions
from tests.llm.tiny import END, VOCABULARY, tiny, write

from .models import classifier, images

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
pytest.importorskip("ray.serve")

IMAGES = 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two CPUs' worth of worker processes, which find this package where this process does."""
    folder = Path(mgx_numba.__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "print", builtins.print)  # Ray replaces it
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else 15: other tests, and their threads, starve its processes
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False, logging_level=40
        )
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        yield
        ray.serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def model() -> bytes:
    return mgx_numba.ray.prepare(mgx_numba.parse_onnx(classifier()), batch_sizes=[16], num_threads=1)


@pytest.fixture(scope="module")
def expected(model: bytes) -> np.ndarray:
    """Return the result of one process."""
    settings = SessionOptions(intra_op_num_threads=1)
    return RowSession(InferenceSession(model, settings)).run({"image": images(IMAGES)})["scores"]


def predictions(predictor: Any, **given: Any) -> dict[str, np.ndarray]:
    """Return the results of two actors on a data set of images, in enough blocks that both work."""
    dataset = ray.data.from_items([{"id": k} for k in range(IMAGES)], override_num_blocks=20)
    data = ray.put(images(IMAGES))
    dataset = dataset.map_batches(lambda batch: {**batch, "pixels": ray.get(data)[batch["id"]]}, batch_size=50)
    arguments = {"columns": {"image": "pixels"}, "output_names": ["scores"], "trust_objects": True, **given}
    dataset = dataset.map_batches(
        predictor,
        fn_constructor_kwargs=arguments,
        batch_size=50,
        num_cpus=0.5,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    rows = dataset.take_all()
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_data_set_over_two_actors_is_that_of_one_process(cluster: None, model: bytes, expected: np.ndarray) -> None:
    found = predictions(mgx_numba.ray.Predictor, model=ray.put(model))
    assert sorted(found) == ["id", "scores"]
    np.testing.assert_array_equal(found["id"], np.arange(IMAGES))
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-4, atol=1e-5)


def test_killed_actor_loses_nothing(cluster: None, model: bytes, expected: np.ndarray, tmp_path: Path) -> None:
    marker, killed = tmp_path / "killed", signal.SIGKILL

    class Dying(mgx_numba.ray.Predictor):
        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            found = super().__call__(batch)
            if batch["id"][0] >= 500:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return found
                os.kill(os.getpid(), killed)
            return found

    found = predictions(Dying, model=model)
    assert marker.exists()
    np.testing.assert_array_equal(found["id"], np.arange(IMAGES))
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-4, atol=1e-5)


def processes_with(mark: str) -> list[int]:
    """Processes that have this text in their environment and run a measurement."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark.encode() in (folder / "environ").read_bytes():
                found += [int(folder.name)] if b"_measured" in (folder / "cmdline").read_bytes() else []
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by Linux's /proc")
def test_tuning_with_a_killed_worker_has_each_problem_once(cluster: None, tmp_path: Path) -> None:
    path, mark = tmp_path / "records.json", uuid.uuid4().hex
    models = [
        mgx_numba.parse_onnx(classifier(batch, channels)) for batch, channels in ((1, 8), (2, 8), (2, 24), (2, 8))
    ]
    killed: list[int] = []

    def kill_one() -> None:
        end = time.monotonic() + 60
        while not killed and time.monotonic() < end:
            for process in processes_with(mark)[:1]:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    arguments = {"runtime_env": {"env_vars": {"MGX_TEST_MARK": mark}}}
    records = mgx_numba.ray.tune(models, path, ray_remote_args=arguments)
    killer.join()
    assert len(killed) == 1
    wanted = {c.problem.key for m in models for c in m.clone().compile("cpu", num_threads=1).tuning_choices()}
    assert sorted(r.problem.key for r in records) == sorted(wanted)
    assert sorted(r.problem.key for r in read_records(path)) == sorted(wanted)
    compiled = models[0].clone().compile("cpu", num_threads=1, problem_cache=[str(path)])
    assert {c.origin for c in compiled.tuning_choices()} == {str(path)}
    assert mgx_numba.ray.tune(models, path) == []
    tuned = models[0].clone().compile("cpu", num_threads=1, problem_cache=[str(path)])
    assert mgx_numba.ray.tune([tuned], tmp_path / "other.json") == []
    assert len(read_records(tmp_path / "other.json")) == len(tuned.tuning_choices())


def test_tuning_needs_lengths(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="input 'image' is .*tuning needs all lengths"):
        mgx_numba.ray.tune([mgx_numba.parse_onnx(classifier())], tmp_path / "r.json")
    with pytest.raises(OptionError, match="num_threads is 0"):
        mgx_numba.ray.tune([], tmp_path / "r.json", num_threads=0)


def post(address: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def port(cluster: None) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    return port


def test_language_models_answer_openais_interface(port: int, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    weights = tiny("grouped")
    folder = write(weights, tmp_path)
    words = tokenizers.models.WordLevel({f"t{k}": k for k in range(VOCABULARY)}, unk_token="t0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    application = mgx_numba.ray.language_deployment(folder, ray_actor_options={"num_cpus": 1})
    ray.serve.run(application, name="words", route_prefix="/words", logging_config={"log_level": "ERROR"})
    body = {"prompt": "t5 t6 t7", "temperature": 0, "max_tokens": 6}
    status, answer = post(f"http://127.0.0.1:{port}/words/v1/completions", body)
    found = [5, 6, 7]
    while len(found) < 9 and found[-1] != END:
        found.append(int(np.argmax(weights.logits(found)[-1])))
    wanted = " ".join(f"t{k}" for k in found[3:] if k != END)
    assert (status, answer["choices"][0]["text"]) == (200, wanted)
    assert post(f"http://127.0.0.1:{port}/words/v1/completions", {})[0] == 400
    ray.serve.delete("words")


def test_server_joins_requests_and_refuses_bad_ones(port: int, model: bytes, expected: np.ndarray) -> None:
    application = mgx_numba.ray.deployment(
        ray.put(model),
        name="classifier",
        trust_objects=True,
        batch_wait_timeout_s=0.05,
        ray_actor_options={"num_cpus": 1},
    )
    handle = ray.serve.run(application, route_prefix="/classifier", logging_config={"log_level": "ERROR"})
    data = images(IMAGES)
    answers = [handle.infer.remote({"image": data[k : k + 1 + k % 3]}) for k in range(24)]
    for k, answer in enumerate(answers):
        np.testing.assert_allclose(answer.result()["scores"], expected[k : k + 1 + k % 3], rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="no column 'image'"):
        handle.infer.remote({}).result()
    address = f"http://127.0.0.1:{port}/classifier"
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert json.load(answer)["inputs"][0]["name"] == "image"

    def ask(k: int) -> tuple[int, Any]:
        entry = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": data[k].ravel().tolist()}
        return post(address, {"inputs": [entry] if k % 4 else []})

    with ThreadPoolExecutor(8) as threads:
        for k, (status, answer) in enumerate(threads.map(ask, range(16))):
            if k % 4:
                assert status == 200 and answer["outputs"][0]["shape"] == [1, 5]
                np.testing.assert_allclose(answer["outputs"][0]["data"], expected[k], rtol=1e-4, atol=1e-5)
            else:
                assert status == 400 and "no column 'image'" in answer["error"]
