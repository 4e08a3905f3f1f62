"""Starts of networks with an installed wheel and an empty cache folder: the kernels that had to be compiled."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from bench.light import randomize
from bench.models import MODELS, build, light_models
from tests.dynamic.models import MODELS as DYNAMIC
from tools.prebuild.corpus.item import with_open_batch

__all__ = ["starts"]

NETWORKS = ("light_squeezenet", "bert", "gpt2", "resnet50", "mobilenet_v2", "yolo", "decoder")
"""Networks of the corpus, of each usual kind; ``decoder`` has open lengths."""
FORMS: dict[str, Mapping[str, Any]] = {
    "": {},
    "open batch": {},
    "one thread": {"num_threads": 1},
    "exact": {"fast_math": False},
}
"""Options of ``compile``, by form."""
START = """
import json
import sys
import mgx_numba

program = mgx_numba.parse_onnx(sys.argv[1], default_dyn_dim_value=mgx_numba.dynamic_dimension(0, 4096))
program.compile("cpu", **json.loads(sys.argv[2]))
feeds = {}
for name, shape in program.get_parameter_shapes().items():
    if shape.dynamic():
        lens = [one.min if one.is_fixed() else 2 for one in shape.dyn_dims()]
        shape = mgx_numba.shape(type=shape.type_string(), lens=lens)
    feeds[name] = mgx_numba.fill_argument(shape, 0)
program.run(feeds)
"""
_SHOWN = 5  # names of kernels in a line


def starts(python: str, folder: Path, networks: tuple[str, ...] = NETWORKS) -> list[str]:
    """Return a line for each network and form: how many kernels its first run compiled, and which.

    Args:
        python: interpreter of the environment in which the wheel is installed.
        folder: a folder for models and caches.
        networks: names of the benchmark's models, of the onnx package's light models, and of `tests.dynamic.models`.

    Raises:
        ValueError: a network does not run.
    """
    lines = []
    for name, form in itertools.product(networks, FORMS):
        model = _model(name)
        path, cache = folder / "model.onnx", folder / f"cache-{name}-{form}"
        onnx.save(with_open_batch(model) if form == "open batch" else model, path)
        done = subprocess.run(
            [python, "-I", "-c", START, str(path), json.dumps(FORMS[form])],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "MGX_CACHE_DIR": str(cache)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError(f"{name} {form}: {done.stderr[-2000:]}")
        # shipped kernels are not stored again
        compiled = Counter(json.loads(path.read_text())["name"] for path in cache.glob("objects/*.json"))
        shown = ", ".join(list(compiled)[:_SHOWN]) + (", ..." if len(compiled) > _SHOWN else "")
        title = ", ".join(filter(None, (name, form)))
        lines.append(f"{title}: kernels compiled at the first start: {compiled.total()}{shown and f' ({shown})'}")
    return lines


def _model(name: str) -> onnx.ModelProto:
    if name in DYNAMIC:
        return DYNAMIC[name]().model
    return build(name) if name in MODELS else randomize(onnx.load(light_models()[name]))
