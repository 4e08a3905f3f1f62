"""Names of ONNX Runtime's extension module."""

# ruff: noqa: F403
from __future__ import annotations

from mgx_numba.session.devices import *
from mgx_numba.session.enums import *
from mgx_numba.session.epdevices import *
from mgx_numba.session.exceptions import *
from mgx_numba.session.inference import *
from mgx_numba.session.model import *
from mgx_numba.session.options import *
from mgx_numba.session.options import SessionOptions
from mgx_numba.session.process import *
from mgx_numba.session.providers import *
from mgx_numba.session.sparse import *
from mgx_numba.session.values import *

get_default_session_options = SessionOptions
