"""Parts of the package ``onnx`` without the package: importing all of it takes 45 ms, its messages and schemas 12 ms.

The parts are modules of the package. If the process imports the package later, the package finds them.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_lock = threading.RLock()
_parts: dict[str, ModuleType] = {}


def messages() -> ModuleType:
    """Return ``onnx.onnx_ml_pb2``, the module of ONNX's protobuf messages."""
    return _part("onnx_ml_pb2")


def definitions() -> ModuleType:
    """Return the native module behind ``onnx.defs``, which has the schemas of operators."""
    return _part("onnx_cpp2py_export").defs


def infer_shapes(model: Any) -> Any:
    """Return the result of ``onnx.shape_inference.infer_shapes(model, data_prop=True)``."""
    native = _part("onnx_cpp2py_export").shape_inference
    return type(model).FromString(native.infer_shapes(model.SerializeToString(), False, False, True))


def newest_opset(domain: str = "") -> int:
    """Return the newest version of a domain's operator set that the installed ``onnx`` defines."""
    return int(definitions().schema_version_map()[domain][1])


def _part(name: str) -> ModuleType:
    """Return a module of ``onnx`` that needs no other module of the package."""
    full = f"onnx.{name}"
    with _lock:
        if full not in sys.modules:
            package = None if "onnx" in sys.modules else importlib.util.find_spec("onnx")
            spec = package and PathFinder.find_spec(full, package.submodule_search_locations)
            if spec is None or spec.loader is None:
                return importlib.import_module(full)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[full] = _parts[name] = module
            if _Finder not in sys.meta_path:
                sys.meta_path.insert(0, _Finder)
        return sys.modules[full]


class _Finder:
    """Finds the package ``onnx``, and gives it the parts as attributes, as their import would have done."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != "onnx":
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        module.__dict__.update(_parts)
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
