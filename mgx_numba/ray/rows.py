"""Running a model on any number of rows, in batches of the size that suits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..api.program import program
from ..core.shape import Shape
from ..errors import ParameterError, UnsupportedError
from ..session import InferenceSession, SessionOptions


def open_session(model: Any, num_threads: int, options: Mapping[str, Any], trust_objects: bool) -> RowSession:
    """The model of an actor.

    Args:
        model: an ONNX or ``.mxr`` file, the bytes of one, or a reference to these in the object store.
        num_threads: of a run; 0 for the CPUs that Ray gives the actor, at least one.
        options: those of ``program.compile``.
        trust_objects: use the machine code in the file.
    """
    import ray

    context: Any = ray.get_runtime_context()
    source = ray.get(model) if isinstance(model, ray.ObjectRef) else model
    threads = num_threads or max(1, int(context.get_assigned_resources().get("CPU", 1)))
    provider = "CUDAExecutionProvider" if ray.get_gpu_ids() else "CPUExecutionProvider"
    settings = SessionOptions(intra_op_num_threads=threads)
    return RowSession(InferenceSession(source, settings, [(provider, dict(options))], trust_objects=trust_objects))


def input_shapes(model: program) -> dict[str, Shape]:
    """The shapes of a program's inputs, by name.

    Raises:
        UnsupportedError: one has no leading dimension, or they do not have the same one, so that there are no rows.
    """
    shapes = {name: s._value for name, s in model.get_parameter_shapes().items()}
    for name, shape in shapes.items():
        if shape.without_axes or not shape.ndim:
            raise UnsupportedError(f"input {name!r} is {shape}, which has no leading dimension for rows")
    if len({(d.min, d.max) for d in (shape.dims[0] for shape in shapes.values())}) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise UnsupportedError(f"inputs have no leading dimension in common: {listed}")
    return shapes


class RowSession:
    """A session whose inputs and results are rows: the leading dimension of all of them counts independent inferences.

    Args:
        session: of a model whose leading dimension is open or of one length.

    Attributes:
        batch_size: rows of a run at most: what the model says (the largest of its ``optimals``, or its one length), 0
            for as many as there are.
        shapes: shapes of the inputs, by name.

    Raises:
        UnsupportedError: the model has no rows.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.shapes = input_shapes(session._program)
        self.output_names = [o.name for o in session.get_outputs()]
        first = next((shape.dims[0] for shape in self.shapes.values()), None)
        if first is None:
            raise UnsupportedError("the model has no inputs, and so no rows")
        self._sizes = [first.min] if first.is_fixed else sorted(first.optimals)
        self._fixed = first.is_fixed
        self.batch_size = max(self._sizes, default=0)

    def checked(self, columns: Mapping[str, object]) -> dict[str, np.ndarray]:
        """The inputs among ``columns``, as arrays.

        Raises:
            ParameterError: one is missing, they differ in their number of rows, or one does not fit; the message says
                what was expected.
        """
        found = {}
        for name, shape in self.shapes.items():
            if name not in columns:
                raise ParameterError(f"no column {name!r}; there are: {', '.join(columns) or 'none'}")
            array = np.asarray(columns[name])
            if array.dtype == object and len(array):
                array = _stacked(name, array)
            own = array.shape[1:]
            fits = len(own) == shape.ndim - 1 and all(d.min <= n <= d.max for n, d in zip(own, shape.dims[1:]))
            if not fits or array.dtype != shape.type.numpy:
                raise ParameterError(f"column {name!r} has rows of {array.dtype} {list(own)}, the input is {shape}")
            found[name] = array
        lengths = {name: len(array) for name, array in found.items()}
        if len(set(lengths.values())) > 1:
            raise ParameterError(f"columns differ in their number of rows: {lengths}")
        return found

    def run(
        self, columns: Mapping[str, object], output_names: Sequence[str] = (), batch_size: int = 0
    ) -> dict[str, np.ndarray]:
        """Results by name, a row for each of the columns'.

        Args:
            columns: an array for each input; others are ignored.
            output_names: which results; all if empty.
            batch_size: rows of a run at most, in place of the model's.

        Rows are added to what is left for a last run, up to the next of the model's ``optimals``, or its one length.

        Raises:
            ParameterError: as `checked`, no such result, or one that has no rows.
        """
        inputs = self.checked(columns)
        names = list(output_names or self.output_names)
        count = len(next(iter(inputs.values())))
        size = self.batch_size if self._fixed else batch_size or self.batch_size or max(count, 1)
        parts = [self._batch(piece, names) for piece in _pieces(inputs, size)]
        return {name: np.concatenate([part[k] for part in parts])[:count] for k, name in enumerate(names)}

    def _batch(self, inputs: dict[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        count = len(next(iter(inputs.values())))
        padded = next((size for size in self._sizes if size >= count), max(count, 1))
        if count < padded:
            inputs = {name: _padded(array, padded) for name, array in inputs.items()}
        results = self._session.run(names, inputs)
        for name, result in zip(names, results, strict=True):
            if result.shape[:1] != (padded,):
                raise ParameterError(
                    f"result {name!r} is {list(result.shape)} for {padded} rows: it has no row of each"
                )
        return [result[:count] for result in results]


def _stacked(name: str, array: np.ndarray) -> np.ndarray:
    try:
        return np.stack([np.asarray(row) for row in array])
    except ValueError:
        lengths = sorted({np.shape(row) for row in array})
        raise ParameterError(f"rows of column {name!r} have different lengths: {lengths[:4]}") from None


def _pieces(inputs: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
    """``size`` rows at a time; one piece without rows if there are none."""
    count = len(next(iter(inputs.values())))
    for start in range(0, max(count, 1), size):
        yield {name: array[start : start + size] for name, array in inputs.items()}


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    """Append rows of zeros up to ``count`` rows."""
    return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]), array.dtype)])
