"""`Predictor`: a model for ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .rows import open_session


class Predictor:
    """One compiled program an actor: ``dataset.map_batches(Predictor, fn_constructor_kwargs={"model": ...}, ...)``.

    It takes batches of columns and gives them with the results in place of the inputs. Ray's ``batch_size`` need not
    suit the model: batches are run in pieces of the size that `prepare` found best.

    Args:
        model: what `prepare` gave, better in the object store (``ray.put``): then each node has it once. Or an ONNX or
            ``.mxr`` file that all nodes can read, or the bytes of one.
        columns: the columns that inputs are read from, by input; others have the input's name.
        output_names: which results; all if empty.
        keep: columns of inputs stay.
        batch_size: rows of a run at most; 0 for what the model says.
        num_threads: of a run; 0 for the CPUs that Ray gives the actor (``ray_remote_args`` or ``num_cpus``).
        trust_objects: use the machine code in the file, which whoever wrote it can then run here.
        options: those of ``program.compile``.

    An actor that Ray gives a GPU runs on that.

    Raises:
        MgxError: as `mgx_numba.session.InferenceSession`.
        UnsupportedError: inputs or results have no leading dimension in common, which counts the rows.
    """

    def __init__(
        self,
        model: object,
        *,
        columns: Mapping[str, str] | None = None,
        output_names: Sequence[str] = (),
        keep: bool = False,
        batch_size: int = 0,
        num_threads: int = 0,
        trust_objects: bool = False,
        **options: object,
    ) -> None:
        self._rows = open_session(model, num_threads, options, trust_objects)
        self._columns = {name: (columns or {}).get(name, name) for name in self._rows.shapes}
        self._output_names, self._keep, self._batch_size = tuple(output_names), keep, batch_size

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with the results.

        Raises:
            ParameterError: a column is missing or does not fit; the message says which and what was expected.
        """
        given = {name: batch[column] for name, column in self._columns.items() if column in batch}
        results = self._rows.run(given, self._output_names, self._batch_size)
        used = () if self._keep else self._columns.values()
        return {**{name: array for name, array in batch.items() if name not in used}, **results}
