"""`deployment`: a model behind Ray Serve, whose requests are joined to batches.

It speaks the inference part of the Open Inference Protocol, version 2, in JSON (KServe's ``required_api.md``), as
Triton, KServe and OpenVINO Model Server do, and is called from other deployments by arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.types import Type
from ..errors import MgxError, ParameterError
from .rows import RowSession, open_session

Columns = dict[str, np.ndarray]

_DATATYPES = {
    "BOOL": Type.bool_type,
    "UINT8": Type.uint8_type,
    "UINT16": Type.uint16_type,
    "UINT32": Type.uint32_type,
    "UINT64": Type.uint64_type,
    "INT8": Type.int8_type,
    "INT16": Type.int16_type,
    "INT32": Type.int32_type,
    "INT64": Type.int64_type,
    "FP16": Type.half_type,
    "FP32": Type.float_type,
    "FP64": Type.double_type,
    "BF16": Type.bf16_type,
}
"""The protocol's names of element types."""
_NAMES = {type_: name for name, type_ in _DATATYPES.items()}

_REQUESTS = 32
"""In a batch, where the model does not say how many rows suit it: what `prepare` measures at most."""
_WAIT_SECONDS = 0.005
"""For others to join a first request: as long as models of such a size take."""


def deployment(
    model: object,
    *,
    name: str = "model",
    max_batch_size: int = 0,
    batch_wait_timeout_s: float = _WAIT_SECONDS,
    num_threads: int = 0,
    trust_objects: bool = False,
    options: Mapping[str, object] | None = None,
    **deployment_options: Any,
) -> Any:
    """An application for ``ray.serve.run``: requests that come together are run together.

    HTTP: ``POST`` a protocol request, ``{"inputs": [{"name", "shape", "datatype", "data"}, ...]}``; ``GET`` gives the
    model's metadata. From other deployments ``handle.infer.remote({"input": rows})`` gives results by name. A request
    has any number of rows; one that does not fit the model is refused by itself, with the reason (HTTP status 400).

    Args:
        model: as for `Predictor`.
        name: the model's, in answers.
        max_batch_size: requests that are run together at most; 0 for the rows that the model is best at.
        batch_wait_timeout_s: seconds that a request waits for others.
        num_threads: of a run; 0 for the CPUs of a replica (``ray_actor_options={"num_cpus": ...}``).
        trust_objects: use the machine code in the file, which whoever wrote it can then run in the replicas.
        options: those of ``program.compile``.
        deployment_options: those of ``serve.deployment``: ``num_replicas``, ``ray_actor_options``, ...
    """
    from ray import serve

    replica = serve.deployment(**{"name": name, **deployment_options})(Replica)
    return replica.bind(model, name, max_batch_size, batch_wait_timeout_s, num_threads, trust_objects, options or {})


class Replica:
    """Runs a model on batches of requests; the class that `deployment` deploys."""

    def __init__(
        self,
        model: object,
        name: str,
        max_batch_size: int,
        batch_wait_timeout_s: float,
        num_threads: int,
        trust_objects: bool,
        options: Mapping[str, object],
    ) -> None:
        from ray import serve

        rows = open_session(model, num_threads, options, trust_objects)

        async def together(requests: list[Columns]) -> list[Columns]:
            return run_together(rows, requests)

        self._name, self._rows = name, rows
        batched = serve.batch(
            max_batch_size=max_batch_size or rows.batch_size or _REQUESTS, batch_wait_timeout_s=batch_wait_timeout_s
        )
        self._together = batched(together)

    async def infer(self, columns: Mapping[str, object]) -> Columns:
        """Results by name for an array of rows for each input.

        Raises:
            ParameterError: the arrays do not fit the model.
        """
        found: Columns = await self._together(self._rows.checked(columns))
        return found

    async def __call__(self, request: Any) -> object:
        """The answer to an HTTP request."""
        from starlette.responses import JSONResponse

        if request.method == "GET":
            return JSONResponse(metadata(self._name, self._rows))
        try:
            results = await self.infer(read_request(await request.json(), self._rows))
        except (MgxError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse(write_response(self._name, results))


def run_together(rows: RowSession, requests: Sequence[Columns]) -> list[Columns]:
    """Results of each of several requests, those whose rows have the same lengths run as one."""
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(tuple(array.shape[1:] for array in request.values()), []).append(number)
    found: list[Columns] = [{}] * len(requests)
    for members in groups.values():
        joined = {n: np.concatenate([requests[k][n] for k in members]) for n in requests[members[0]]}
        results = rows.run(joined)
        ends = np.cumsum([len(next(iter(requests[k].values()))) for k in members])
        for k, begin, end in zip(members, [0, *ends[:-1]], ends, strict=True):
            found[k] = {name: result[begin:end] for name, result in results.items()}
    return found


def metadata(name: str, rows: RowSession) -> dict[str, object]:
    """The protocol's description of a model; lengths that are open are -1."""
    inputs = [
        {"name": n, "datatype": _NAMES.get(s.type, s.type.name), "shape": [d.min if d.is_fixed else -1 for d in s.dims]}
        for n, s in rows.shapes.items()
    ]
    return {
        "name": name,
        "platform": "mgx_numba",
        "inputs": inputs,
        "outputs": [{"name": n} for n in rows.output_names],
    }


def read_request(body: object, rows: RowSession) -> Columns:
    """The arrays of a protocol request.

    Raises:
        ParameterError: it is none, or an input is not one of the model's.
    """
    entries = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ParameterError("the request must be an object with an array 'inputs' of objects")
    found = {}
    for entry in entries:
        name, kind, lens = entry.get("name"), entry.get("datatype"), entry.get("shape")
        if name not in rows.shapes:
            raise ParameterError(f"no input {name!r}; the model's are: {', '.join(rows.shapes)}")
        if kind not in _DATATYPES:
            raise ParameterError(f"datatype of {name!r} is {kind!r}, expected one of {', '.join(_DATATYPES)}")
        if not isinstance(lens, list) or not all(type(n) is int and n >= 0 for n in lens):
            raise ParameterError(f"shape of {name!r} is {lens!r}, expected an array of lengths")
        try:
            found[name] = np.asarray(entry.get("data")).astype(_DATATYPES[kind].numpy).reshape(lens)
        except (TypeError, ValueError) as error:
            raise ParameterError(f"data of {name!r} is not of {kind} {lens}: {error}") from None
    return found


def write_response(name: str, results: Mapping[str, np.ndarray]) -> dict[str, object]:
    """The protocol's answer; what JSON has no number for (NaN, infinities) is null."""
    outputs = []
    for output, array in results.items():
        kind = next((n for n, type_ in _DATATYPES.items() if type_.numpy == array.dtype), array.dtype.name)
        flat = array.astype(np.float64).ravel() if array.dtype.kind not in "biu" else array.ravel()
        data = [v if np.isfinite(v) else None for v in flat.tolist()]
        outputs.append({"name": output, "datatype": kind, "shape": list(array.shape), "data": data})
    return {"model_name": name, "outputs": outputs}
