"""The measured models, as files with inputs.

A case is named by its model, with the batch size after an ``@`` if it is not 1: ``bert``, ``light_resnet50@8``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bench.agreement import exposed
from bench.light import randomize, rebatch
from bench.models import MODELS, build, inputs, light_models
from bench.probe import load_feeds

__all__ = ["BATCHED", "Case", "case_names", "kept", "prepare"]

BATCHED = ("light_resnet50@8", "bert@8")


@dataclass(frozen=True)
class Case:
    """A model file and inputs for it.

    ``feeds_path`` is an ``.npz`` file with the inputs' names, then the inputs, for a process without onnx. ``checked``
    is the file for comparing outputs: the model or a copy. A model with uniform weights gets a copy with other weights;
    a model with choices gets a copy whose results include the choices' inputs (`bench.agreement`).
    """

    name: str
    path: Path
    feeds: dict[str, np.ndarray]
    feeds_path: Path
    checked: Path


def case_names(scale: str = "full") -> list[str]:
    """Return the names of all cases: light_* models (of full scale only), builders, and batched cases."""
    if scale != "full":
        return list(MODELS)
    return [*light_models(), *MODELS, *BATCHED]


def prepare(name: str, folder: Path, scale: str = "full") -> Case:
    """Write the files of a case to an existing folder.

    Raises:
        ValueError: the case is unknown.
    """
    base, _, suffix = name.partition("@")
    if suffix and not suffix.isdecimal():
        raise ValueError(f"case {name!r}: expected a batch size after @")
    batch = int(suffix or 1)
    light = light_models().get(base)
    if light is None:
        if base not in MODELS:
            raise ValueError(f"unknown case {name!r}: expected one of {', '.join(case_names())}")
        model = build(base, batch=batch, scale=scale)
        path = checked = _write(model, folder / f"{name}.onnx")
        if (whole := exposed(model)) is not model:
            checked = _write(whole, _checked(name, folder))
    else:
        model = onnx.load(light)
        path = light
        if batch != 1:
            model = rebatch(model, batch)
            path = _write(model, folder / f"{name}.onnx")
        checked = _write(randomize(model), _checked(name, folder))
    feeds = inputs(base, model)
    feeds_path = folder / f"{name}.npz"
    np.savez(feeds_path, np.array(list(feeds), dtype=np.str_), *feeds.values())
    return Case(name, path, feeds, feeds_path, checked)


def kept(name: str, folder: Path) -> Case:
    """Return a case of full scale whose files are in the folder; prepare it if they are not.

    Raises:
        ValueError: the case is unknown.
    """
    feeds_path = folder / f"{name}.npz"
    if not feeds_path.exists():  # written last
        return prepare(name, folder)
    written, checked = folder / f"{name}.onnx", _checked(name, folder)
    path = written if written.exists() else Path(light_models()[name])
    return Case(name, path, load_feeds(feeds_path), feeds_path, checked if checked.exists() else path)


def _checked(name: str, folder: Path) -> Path:
    return folder / f"{name}.checked.onnx"


def _write(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path
