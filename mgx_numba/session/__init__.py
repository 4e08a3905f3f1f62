"""ONNX Runtime's session interface: code written for ONNX Runtime changes only its import.

``import mgx_numba.session as onnxruntime``, or ``from mgx_numba.session import InferenceSession``. Packages that import
``onnxruntime`` themselves use these sessions after `install_as_onnxruntime`. ``__version__`` is the version of ONNX
Runtime whose interface is implemented, as callers expect; ``mgx_numba.__version__`` is this package's version.
"""

# ruff: noqa: F403
from __future__ import annotations

from ..garbage import uncollected

with uncollected():
    from . import (
        alias,
        binding,
        capi,
        devices,
        enums,
        epdevices,
        inference,
        model,
        options,
        process,
        providers,
        sparse,
        values,
    )
    from .alias import *
    from .binding import *
    from .devices import *
    from .enums import *
    from .epdevices import *
    from .inference import *
    from .model import *
    from .options import *
    from .process import *
    from .providers import *
    from .sparse import *
    from .values import *

__version__ = version = process.API_VERSION
__all__ = ["__version__", "capi", "version"]
__all__ += alias.__all__
__all__ += binding.__all__
__all__ += devices.__all__
__all__ += enums.__all__
__all__ += epdevices.__all__
__all__ += inference.__all__
__all__ += model.__all__
__all__ += options.__all__
__all__ += process.__all__
__all__ += providers.__all__
__all__ += sparse.__all__
__all__ += values.__all__
