"""The solvers of convolutions."""

from __future__ import annotations

from .conv import ConvDirect, ConvPointwise
from .conv_amx import ConvAmx
from .conv_bfloat16 import ConvBfloat16
from .conv_int8 import ConvInt8, ConvInt8Residual
from .conv_transposed import ConvTransposed
from .conv_transposed_amx import ConvTransposedAmx
from .depthwise import ConvDepthwise, ConvDepthwiseAny
from .gemm_amx import ConvPointwiseAmx
from .solver import AnySolver
from .winograd.form import Form
from .winograd.int8 import ConvWinogradInt8
from .winograd.solver import ConvWinograd
from .winograd.strided import ConvWinogradStrided
from .winograd.winograd_amx import ConvWinogradAmx

CONV_SOLVERS: tuple[AnySolver, ...] = (
    ConvPointwise(),
    ConvPointwiseAmx(),
    ConvDepthwise(),
    ConvDepthwiseAny(),
    ConvDirect(),
    ConvInt8(),
    ConvInt8Residual(),
    ConvBfloat16(),
    ConvAmx(),
    ConvTransposed(),
    ConvTransposedAmx(),
    *(ConvWinograd(Form(out, taps, stored)) for out, taps in ((2, 3), (4, 3), (2, 5)) for stored in (False, True)),
    ConvWinogradAmx(Form(2, 3, True)),
    *(ConvWinogradInt8(Form(2, 3, stored)) for stored in (False, True)),
    *(ConvWinogradStrided(Form(out, taps, stored)) for out, taps in ((4, 3), (3, 4)) for stored in (False, True)),
)
