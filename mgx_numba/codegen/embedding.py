"""Machine code inside a model's file, for readers that trust its author.

It is a value tree: ``identity`` (versions, CPU and features that the code depends on) and ``kernels``, each with
``name``, ``symbol``, ``sha256`` and ``object``. A kernel is found by its symbol, the hash of its source text and that
identity, so code for another environment is never used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import CompileError, FormatError, OptionError
from ..graph.wire import Blob
from ..messages import shortened, warn
from .backend import backend
from .kernel import KernelSource
from .store import Store, default_store

_SYMBOL = re.compile("mgx_[0-9a-f]{24}")


def embed(sources: Sequence[KernelSource], store: Store | None = None) -> dict[str, object]:
    """Return the value tree of kernels' objects; objects that ``store`` (by default the user's) lacks are compiled.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    distinct = {source.symbol: source for source in sources}
    own = backend(_one_backend(distinct.values()))
    objects = own.objects(list(distinct.values()), store=store)
    kernels = [
        {
            "name": source.name,
            "symbol": symbol,
            "sha256": hashlib.sha256(objects[symbol]).hexdigest(),
            "object": Blob(objects[symbol]),
        }
        for symbol, source in distinct.items()
        if symbol in objects
    ]
    return {"identity": dict(own.identity()), "kernels": kernels}


class EmbeddedStore:
    """A file's objects, looked up before the user's object store; they are not copied into it.

    Damaged objects, and those of another CPU, features or versions, are ignored with one warning.
    """

    def __init__(self, value: Any) -> None:
        """Check a tree from `embed`.

        Raises:
            FormatError: it is malformed.
        """
        self._told = False
        self._objects = _checked(value)
        differences = _differences(value["identity"], _identity_here(value["identity"]))
        if differences:
            self._objects = {}
            self._tell(f"it was built for another environment: {', '.join(differences)}")

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object of a kernel: the file's, else the user's."""
        found = self._objects.get(source.symbol)
        if found is not None:
            data = bytes(found[1])
            if hashlib.sha256(data).hexdigest() == found[0] and backend(source.backend).loadable(source, data):
                return data
        stored = default_store().get(source)
        if stored is None and self._objects:
            self._tell(f"{source.name} is {'absent' if found is None else 'damaged'}")
        return stored

    def put(self, source: KernelSource, data: bytes) -> None:
        """Store an object in the user's store."""
        default_store().put(source, data)

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            text = f"the machine code in the file is not used, or not all of it, and is built here: {reason}"
            warn(text, RuntimeWarning)


def _one_backend(sources: Iterable[KernelSource]) -> str:
    names = sorted({source.backend for source in sources})
    if len(names) != 1:
        raise CompileError(f"machine code of one back end is kept in a file; the kernels are of {names or 'none'}")
    return names[0]


def _identity_here(recorded: Mapping[str, object]) -> Mapping[str, str]:
    """Return the current identity of the recorded back end; empty if there is no such back end."""
    try:
        return backend(str(recorded.get("backend"))).identity()
    except OptionError:
        return {}


def _checked(value: object) -> dict[str, tuple[str, memoryview]]:
    """Return digest and bytes by symbol."""
    if not isinstance(value, dict) or not isinstance(value.get("identity"), dict):
        raise FormatError("machine code: it must be a map with a map 'identity'")
    kernels = value.get("kernels")
    if not isinstance(kernels, list):
        raise FormatError("machine code: 'kernels' must be an array")
    found: dict[str, tuple[str, memoryview]] = {}
    for number, kernel in enumerate(kernels):
        fields = kernel if isinstance(kernel, dict) else {}
        symbol, digest, data = (fields.get(name) for name in ("symbol", "sha256", "object"))
        if isinstance(data, list) and len(data) == 1:
            (data,) = data
        if not isinstance(symbol, str) or not _SYMBOL.fullmatch(symbol) or not isinstance(digest, str):
            raise FormatError(f"machine code: kernel {number} must have strings 'symbol' and 'sha256'")
        if not isinstance(data, memoryview):
            raise FormatError(f"machine code: 'object' of kernel {number} must be binary")
        found[symbol] = digest, data
    return found


def _differences(recorded: Mapping[str, object], wanted: Mapping[str, str]) -> list[str]:
    """Return the differing fields; of features, those that only one side has."""
    found = []
    for key in sorted(recorded.keys() | wanted.keys()):
        old, new = str(recorded.get(key, "nothing")), wanted.get(key, "nothing")
        if old == new:
            continue
        if key == "features":
            words = sorted(set(old.split(",")) ^ set(new.split(",")))
            old, new = (" ".join(w for w in words if w in text.split(",")) or "none" for text in (old, new))
        found.append(f"{key} ({shortened(old, 40)} in the file, {shortened(new, 40)} here)")
    return found
