"""`Predictor`: a model for ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .rows import open_session


class Predictor:
    """An actor class for ``dataset.map_batches(Predictor, fn_constructor_kwargs={"model": ...}, ...)``.

    Each actor holds one compiled program. It receives a batch of columns, and returns it with the results in place of
    the inputs. Ray's ``batch_size`` is independent of the model: the actor splits a batch into runs of the size that
    `prepare` measured as fastest.

    Args:
        model: the bytes returned by `prepare`, preferably a reference from ``ray.put``, which transfers them to each
            node once; or the path (readable on all nodes) or the bytes of an ONNX or ``.mxr`` file.
        columns: column by input name; an input that is not listed is read from the column of its own name.
        output_names: results to return; empty: all.
        keep: whether input columns stay in the returned batch.
        batch_size: most rows of a run; 0: the model's own limit.
        num_threads: threads of a run; 0: the CPUs that Ray gives the actor (``ray_remote_args`` or ``num_cpus``).
        trust_objects: whether to load machine code from the file; the file's author can then run code on this machine.
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
