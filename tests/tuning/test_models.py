"""Whole models tuned in one cache folder and loaded in another process with an empty one, or on "another machine".

Times are made up, so that any solver and blocking may win and nothing but the winners is compiled.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import onnx
import pytest

import mgx_numba as migraphx
from bench.models import build, inputs, light_models
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.tuning.request import Candidate
from mgx_numba.targets.cpu.measuring import Bench

from ..caches import with_kernels
from ..features import features
from ..mutation.trees import file_tree
from ..running import said
from .support import choices

MODELS = ("bert", "mobilenet_v2", "light_squeezenet")

READER = """
import json, sys, warnings
import numpy as np
import mgx_numba
from mgx_numba.targets.cpu.measuring import Bench
from tests.tuning.support import choices

def never(*arguments):
    raise AssertionError("measured")

Bench.sample = never
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    net = mgx_numba.load(sys.argv[1])
    results = net.run(dict(np.load(sys.argv[2])))
chosen = [[c.problem.key, c.solver, dict(c.configuration), c.origin, c.miss] for c in net.tuning_choices()]
print(json.dumps([chosen, choices(net), [str(w.message) for w in told]]))
np.savez(sys.argv[3], *[np.array(r) for r in results])
"""


def made_up(self: Bench, candidate: Candidate) -> float:
    """Anything, but a solver's own blocking is never the best."""
    text = f"{self.request.key().key} {candidate}"
    chance = int(hashlib.sha256(text.encode()).hexdigest()[:4], 16)
    return 1e-3 * (1 + chance / (1 << 16)) / (3 if candidate.configuration else 1)


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


emulated = features([host.EMULATED_TILES])


@pytest.fixture
def tuned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> migraphx.program:
    """The model after tuning; ``net.mxr`` and ``feeds.npz`` are in the folder."""
    monkeypatch.setattr(Bench, "sample", made_up)
    model = onnx.load(light_models()[name]) if name in light_models() else build(name, scale="tiny")
    np.savez(tmp_path / "feeds.npz", **inputs(name, model))
    net = migraphx.parse_onnx_buffer(model.SerializeToString())
    net.compile(exhaustive_tune=True, num_threads=2)
    migraphx.save(net, tmp_path / "net.mxr")
    return net


def read(folder: Path, file: str) -> tuple[list[Any], list[str], list[str], list[np.ndarray]]:
    """Choices, steps, warnings and results of a fresh process whose cache folder has kernels but no records."""
    cache = folder / "empty"
    if not cache.exists():
        with_kernels(cache)
    words = said(READER, *(folder / n for n in (file, "feeds.npz", "results.npz")), MGX_CACHE_DIR=cache)
    assert not (cache / "tuning.sqlite").exists()
    chosen, steps, told = json.loads(words)
    with np.load(folder / "results.npz") as results:
        return chosen, steps, told, list(results.values())


def test_carried_and_hinted_choices(tuned: migraphx.program, tmp_path: Path) -> None:
    """Every problem has the same solver and configuration without a measurement, and results are bit-equal.

    On this machine the records are used; on another machine they are hints, with one warning.
    """
    feeds = dict(np.load(tmp_path / "feeds.npz"))
    wanted = [np.array(r) for r in tuned.run(feeds)]
    own = [[c.problem.key, c.solver, dict(c.configuration)] for c in tuned.tuning_choices()]
    assert own and any(configuration for _, _, configuration in own)
    root = file_tree((tmp_path / "net.mxr").read_bytes())
    for record in root["mgx_numba"]["tuning"]:
        record["fingerprint"].update(cpu="another", cores=96)
    (tmp_path / "other.mxr").write_bytes(msgpack.packb(root))
    for file, hints in (("net.mxr", 0), ("other.mxr", 1)):
        chosen, steps, told, results = read(tmp_path, file)
        assert [c[:3] for c in chosen] == own and steps == choices(tuned)
        assert {c[3] for c in chosen} == {"model"}
        assert all(('cpu (recorded "another"' in c[4]) if hints else c[4] == "" for c in chosen)
        assert len(told) == hints and all("used as hints" in text for text in told)
        assert [r.tobytes() for r in results] == [w.tobytes() for w in wanted]


def test_tuned_model_is_right(tuned: migraphx.program, tmp_path: Path) -> None:
    feeds = dict(np.load(tmp_path / "feeds.npz"))
    reference = tuned.clone()
    reference.compile(migraphx.get_target("ref"))
    for ours, theirs in zip(tuned.run(feeds), reference.run(feeds)):
        ours, theirs = np.array(ours, np.float64), np.array(theirs, np.float64)
        assert np.abs(ours - theirs).max(initial=0) <= 1e-3 * max(np.abs(theirs).max(initial=0), 1e-30)


@pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", ["light_squeezenet"])
def test_problems_that_winners_bring_are_measured_too(tuned: migraphx.program) -> None:
    """With AMX a winner may write its result in parts, or not: then the next layer has another problem."""
    assert {choice.origin for choice in tuned.tuning_choices()} == {"measured"}
