"""`Config`: the settings of a model folder of onnxruntime-genai, ``genai_config.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError, OptionError
from ..graph.json_file import json_object, read_text

CONFIG_FILE = "genai_config.json"

_TARGETS = {"cpu": "cpu", "cuda": "gpu", "nvtensorrtrtx": "gpu"}
"""Targets of ours by the provider names of onnxruntime-genai, in lower case."""


class Config:
    """Settings of a genai folder, which a script may change before it makes a `Model`.

    ``settings`` is the parsed file. ``append_provider("cuda")`` compiles for the target ``gpu``.
    """

    def __init__(self, config_path: str | os.PathLike[str]) -> None:
        """Read ``genai_config.json`` of a folder.

        Raises:
            FormatError: the folder or its file does not exist, or the file is no JSON object with a decoder.
        """
        self.folder = Path(config_path)
        file = self.folder / CONFIG_FILE
        found = json_object(read_text(file), file)
        model = found.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("decoder"), dict):
            raise FormatError(f"{file}: expected an object with the entry model.decoder")
        self.settings: dict[str, Any] = found
        self.model_data: dict[str, bytes] = {}
        self._providers: list[str] = []
        self._options: dict[str, dict[str, str]] = {}
        for entry in self._session_options().get("provider_options", []):
            for name, options in entry.items():
                self._providers.append(name)
                self._options[name] = {key: str(value) for key, value in options.items()}

    def _session_options(self) -> dict[str, Any]:
        return self.settings["model"]["decoder"].get("session_options", {})

    def overlay(self, text: str) -> None:
        """Merge a JSON object into the settings: objects entry by entry, other values by replacement.

        Raises:
            OptionError: the text is no JSON object.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise OptionError(f"Config.overlay: not JSON: {error}") from error
        if not isinstance(found, dict):
            raise OptionError(f"Config.overlay: expected a JSON object, got {type(found).__name__}")
        _merge(self.settings, found)

    def clear_providers(self) -> None:
        """Remove all providers; the model then runs on the CPU."""
        self._providers.clear()
        self._options.clear()

    def append_provider(self, name: str) -> None:
        """Add a provider; the first known provider decides the target.

        Raises:
            OptionError: the provider is unknown.
        """
        if name.lower() not in _TARGETS:
            raise OptionError(f"provider {name!r} is unknown; expected one of {', '.join(_TARGETS)}")
        self._providers.append(name)

    def set_provider_option(self, name: str, option: str, value: str) -> None:
        """Set an option of a provider, which is appended if it is absent."""
        if name not in self._providers:
            self.append_provider(name)
        self._options.setdefault(name, {})[option] = value

    def add_model_data(self, name: str, data: bytes) -> None:
        """Supply the ONNX file ``name`` from memory instead of the folder."""
        self.model_data[name] = bytes(data)

    def remove_model_data(self, name: str) -> None:
        """Remove a file that `add_model_data` supplied."""
        self.model_data.pop(name, None)

    @property
    def target(self) -> str:
        """Return the name of the target that the providers ask for."""
        for name in self._providers:
            if name.lower() in _TARGETS:
                return _TARGETS[name.lower()]
        return "cpu"

    @property
    def num_threads(self) -> int:
        """Return the number of threads that the file asks for; 0 leaves the choice to the compiler."""
        return int(self._session_options().get("intra_op_num_threads", 0))


def _merge(into: dict[str, object], given: Mapping[str, object]) -> None:
    for key, value in given.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, Mapping):
            _merge(known, value)
        else:
            into[key] = value
