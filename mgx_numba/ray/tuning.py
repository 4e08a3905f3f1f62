"""`tune`: the kernel choices of many models measured on the machines of a cluster, and one file of records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..api.functions import parse_onnx
from ..api.loading import load
from ..api.program import program
from ..codegen.backend import backend
from ..codegen.tuning.files import best, merge_records, records_from
from ..codegen.tuning.record import TuningRecord
from ..codegen.tuning.request import TuningRequest
from ..codegen.tuning.session import Tuning
from ..codegen.tuning.source import Sources
from ..errors import OptionError
from ..targets.cpu.measuring import Bench
from ..targets.registry import DEFAULT, target
from ..targets.tuning import tune as measure

_RETRIES = 5
"""Times that Ray tries a measurement again whose worker was lost: as often as a run of bad luck, not for ever."""


def tune(
    models: Iterable[program | str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    num_threads: int = 1,
    budget: float | None = None,
    ray_remote_args: Mapping[str, object] | None = None,
    **options: object,
) -> list[TuningRecord]:
    """Measure the products and convolutions of models on a Ray cluster; return the new tuning records.

    Each distinct problem without a record is one Ray task. Ray repeats the task if its worker is lost. New records are
    merged into the file as they arrive, by the rules of ``mgx-numba-driver tune --merge``: the fastest record of each
    problem and machine stays. Existing records of this machine, from the models and the user's database, are added.
    Pass the file to ``compile`` as ``problem_cache``.

    Args:
        models: programs, which are not modified, or paths of ONNX or ``.mxr`` files; all lengths must be known.
        path: a JSON file of records, created if missing. Problems that have a record of this machine are skipped.
        num_threads: threads of the measured runs, and CPUs of a task.
        budget: most seconds per problem; None for no limit.
        ray_remote_args: further resources that tasks request. A record describes the machine of its task: in a cluster
            of different machines, request one kind of machine.
        options: those of ``program.compile``.

    Raises:
        OptionError: a number of threads below 1, or a model with open dimensions.
        MgxError: a model cannot be read or compiled.
        ray.exceptions.RayError: Ray gave a task up.
    """
    import ray

    if num_threads < 1:
        raise OptionError(f"num_threads is {num_threads}, expected at least 1")
    caches = [os.fspath(path)] if os.path.exists(path) and os.path.getsize(path) else []
    requests: dict[str, TuningRequest] = {}
    for model in models:
        tuning = _tuning(model, {**options, "num_threads": num_threads, "problem_cache": caches})
        requests.update({request.key().key: request for request, _ in tuning.pending()})
        known = [found.record for found in tuning.used() if found.exact]
        if known:
            merge_records(path, known)
    arguments = {"num_cpus": num_threads, "max_retries": _RETRIES, "scheduling_strategy": "SPREAD"}
    task = ray.remote(_measured).options(**{**arguments, **(ray_remote_args or {})})
    waiting = [task.remote(request, budget) for request in requests.values()]
    records: list[TuningRecord] = []
    while waiting:
        (ready,), waiting = ray.wait(waiting, num_returns=1)
        found = records_from(ray.get(ready))
        merge_records(path, found)
        records += found
    return best(records)


def _tuning(model: program | str | os.PathLike[str], options: dict[str, Any]) -> Tuning:
    """A model's tuning problems, and the records that answer them."""
    if not isinstance(model, program):
        name = os.fspath(model)
        model = load(name) if name.endswith((".mxr", ".migraphx")) else parse_onnx(name)
    for name, s in model.get_parameter_shapes().items():
        if s.dynamic():
            raise OptionError(
                f"input {name!r} is {s}: tuning needs all lengths, as parse_onnx(map_input_dims=...) gives"
            )
    tuning = model.clone().compile(DEFAULT, **options)._needed("tuning compiles it").tuning
    assert tuning is not None  # the target tunes
    return tuning


def _measured(request: TuningRequest, budget: float | None) -> list[dict[str, object]]:
    """The record of one problem on the machine that this runs on; none if nothing could be measured."""
    found: list[TuningRecord] = []
    tuning = Tuning(backend(target(DEFAULT).backend), Sources([]), found.extend, exhaustive=True, budget=budget)
    tuning.choose(request)
    measure(tuning, Bench)
    return [record.to_json() for record in found]
