"""Past one machine, by Ray (the extra ``ray``): data sets, a server, and tuning on the machines of a cluster.

`prepare` makes of a model what the others spread: the bytes of an ``.mxr`` file with tuning records, machine code and
the best batch size, so that a node compiles nothing. `Predictor` is for ``ray.data.Dataset.map_batches``, `deployment`
and, for language models, `language_deployment` for Ray Serve; `tune` measures the kernels of many models on many
machines.
"""

from __future__ import annotations

from .data import Predictor
from .language import language_deployment
from .preparing import prepare
from .serving import deployment
from .tuning import tune

__all__ = ["Predictor", "deployment", "language_deployment", "prepare", "tune"]
