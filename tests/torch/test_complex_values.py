"""Complex values and Fourier transforms beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")

import mgx_numba.torch  # noqa: E402

from .exported import module_of  # noqa: E402

fft = torch.fft


class Rotary(torch.nn.Module):
    """Rotary embeddings of Llama's style, by a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(16.0), torch.rand(4))
        self.register_buffer("frequencies", torch.polar(torch.ones(16, 4), angles))

    def forward(self, x: Any) -> Any:
        own = self.frequencies[: x.shape[1]].view(1, x.shape[1], 1, -1)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * own).flatten(3)


def _spectrum(x: Any, y: Any) -> Any:
    return (x + y, y * x, x - 2 * y, y / x, y == y.conj(), (y * y).sum(), y.abs(), y.angle(), torch.where(x > 0, y, 1j))


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "rotary": (Rotary(), lambda n: (torch.randn(2, n, 3, 8),)),
    "arithmetic": (_spectrum, lambda n: (torch.randn(3, n), torch.randn(3, n, dtype=torch.complex64))),
    "products": (
        lambda x, y: (x @ y, torch.einsum("ij,jk->ik", x, y).sum(-1), torch.linalg.vector_norm(x)),
        lambda n: (torch.randn(3, n, dtype=torch.complex64), torch.randn(n, 2, dtype=torch.complex64)),
    ),
    "layouts": (
        lambda x: (x.t().clone(), x[1:].flip(0), torch.cat([x, x * 2]), x.real, x.imag + 1, x[None].expand(2, -1, -1)),
        lambda n: (torch.randn(3, n, dtype=torch.complex64),),
    ),
    "real values among complex ones": (
        lambda x, y: (
            torch.cat([x, y, y > 0]),
            torch.stack([y.int(), x]),
            torch.nn.functional.pad(x, (1, 2), value=2.5),
            torch.constant_pad_nd(x, (1, 2), 3),
            x.index_put((torch.tensor([0, 2]),), y[:2].to(x.dtype)),
            torch.slice_scatter(x, y[:1], 0, 1, 2),
            torch.select_scatter(x, y[0], 0, 1),
            torch.block_diag(y, x),
        ),
        lambda n: (torch.randn(3, n, dtype=torch.complex64), torch.randn(3, n)),
    ),
    "constants": (
        lambda x: torch.zeros(3, 4, dtype=torch.complex64) + torch.complex(x, x * 2) * torch.tensor([1 + 2j, 2, 3, 4]),
        lambda n: (torch.randn(3, 4),),
    ),
    "mixing of tokens": (lambda x: fft.fftn(fft.fft(x, dim=-1), dim=1).real, lambda n: (torch.randn(2, n, 8),)),
    "convolution": (
        lambda x: fft.irfft(fft.rfft(x, n=64) * fft.rfft(x, n=64).conj(), n=64)[..., : x.shape[-1]],
        lambda n: (torch.randn(3, n),),
    ),
    "two axes": (
        lambda x: (fft.irfft2(fft.rfft2(x, norm="ortho") * 2, s=x.shape[-2:], norm="ortho"), fft.ifft2(x)),
        lambda n: (torch.randn(2, 6, n),),
    ),
    "long": (lambda x: fft.rfft(x).abs(), lambda n: (torch.randn(2, 1536),)),
    "windows": (
        lambda x, w: (
            torch.stft(x, 64, 16, window=w, return_complex=True),
            torch.istft(torch.stft(x, 64, 16, window=w, return_complex=True), 64, 16, window=w),
        ),
        lambda n: (torch.randn(2, 256 + n), torch.hann_window(64)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_complex_values_are_compiled_as_parts(name: str, caplog: Any) -> None:
    function, made = CASES[name]
    compiled = torch.compile(function, backend="mgx_numba", dynamic=name not in ("mixing of tokens", "two axes"))
    for n in (9, 12):
        args = made(n)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), function(*args), atol=2e-5, rtol=2e-5, check_stride=False)
    assert "mgx_numba" not in {record.name.partition(".")[0] for record in caplog.records if record.levelno >= 30}


def test_operators_of_complex_values_that_are_lacking_run_in_eager_mode(caplog: Any) -> None:
    def roots(x: Any) -> Any:
        return torch.linalg.eigvals(x @ x.t() + torch.eye(3)).abs().sort()[0] * 2 + 1

    x = torch.randn(3, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(roots, backend="mgx_numba")(x), roots(x))
    assert "aten.linalg_eig.default" in caplog.text


def test_program_takes_and_gives_the_parts_of_complex_tensors() -> None:
    x = torch.randn(2, 5, dtype=torch.complex64)
    program = mgx.from_torch(module_of(lambda x: x * x.conj() + 1j), (x,))
    program.compile(mgx.get_target("ref"))
    (name,) = program.get_parameter_names()
    (found,) = program.run({name: torch.view_as_real(x).numpy()})
    expected = torch.view_as_real(x * x.conj() + 1j).numpy()
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-6)


def _typed(x: Any, y: Any) -> Any:
    made = torch.zeros_like(y[0, 0]), torch.full_like(y, 1 + 2j), y.new_ones(2), y.new_full((2,), 3)
    mixed = x * (1 + 2j), x + 1j, torch.add(y, x, alpha=2 - 1j), y * x.double(), torch.eye(3, dtype=y.dtype)
    layouts = y.cdouble(memory_format=torch.channels_last), x.cfloat(memory_format=torch.channels_last), y.rot90()
    return *made, *mixed, *layouts, *torch.var_mean(y, 0), fft.fft(x, dim=1), y.bool(memory_format=torch.channels_last)


def test_complex_results_have_eager_modes_types_and_strides() -> None:
    x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5, dtype=torch.complex64)
    found, expected = torch.compile(_typed, backend="mgx_numba")(x, y), _typed(x, y)
    for own, other in zip(found, expected, strict=True):
        assert (own.dtype, own.stride()) == (other.dtype, other.stride())
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_views_by_strides_of_one_complex_number() -> None:
    x = torch.randn(1, dtype=torch.complex64)
    found = torch.compile(lambda x: torch.as_strided(x, (1,), (1,), 0).clone() + 1, backend="mgx_numba")(x)
    torch.testing.assert_close(found, x + 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_complex_inputs_share_their_memory(dynamic: bool) -> None:
    """Views were copies; with symbolic lengths, PyTorch looked for these copies' strides in the inputs."""

    def function(a: Any, b: Any) -> Any:
        return a.t(), a[1:, ::2], a.split(2)[1], a.real, b.expand(3, -1, 4), *torch.meshgrid(a[0], b[0, :, 0])

    a, b = torch.randn(4, 6, dtype=torch.complex64), torch.randn(1, 5, 1, dtype=torch.complex64)
    with torch.no_grad():
        found = torch.compile(function, backend="mgx_numba", dynamic=dynamic)(a, b)
    for x, y in zip(found, function(a, b), strict=True):
        assert x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and torch.equal(x, y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_computed_complex_results_have_eager_modes_strides(dynamic: bool) -> None:
    a = torch.randn(4, 6, dtype=torch.complex64)
    with torch.no_grad():
        found = torch.compile(lambda a: a.t() * 2, backend="mgx_numba", dynamic=dynamic)(a)
    assert found.stride() == (a.t() * 2).stride() and torch.allclose(found, a.t() * 2)


def test_real_results_of_complex_values_have_eager_modes_strides() -> None:
    w = torch.hann_window(64)

    def magnitudes(x: Any) -> Any:
        return torch.stft(x, 64, 16, window=w, return_complex=True).abs()

    x = torch.randn(2, 400)
    found, expected = torch.compile(magnitudes, backend="mgx_numba")(x), magnitudes(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


FUNCTIONS = "exp expm1 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sqrt rsqrt square sgn".split()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_complex_values_are_those_of_eager_mode(name: str) -> None:
    """PyTorch's formulas over parts gave NaN for ``tanh(100)``, another branch of ``acosh``, and lost small values."""
    sizes = [0, 1e-6, 1e-3, 0.3, 1.5, 2.5, 30, 1e4]
    points = torch.tensor([*sizes, *(-x for x in sizes[1:])])
    z = torch.complex(*torch.meshgrid(points, points, indexing="ij")).flatten()
    function = getattr(torch, name)
    with torch.no_grad():
        found, expected = torch.compile(function, backend="mgx_numba")(z), function(z)
    assert torch.equal(found.isfinite(), expected.isfinite())
    finite = expected.isfinite()
    assert ((found - expected).abs()[finite] <= 2e-6 * expected.abs()[finite] + 1e-30).all()


def test_powers_of_complex_values_are_compiled(caplog: Any) -> None:
    z = torch.randn(3, 5, dtype=torch.complex64)

    def powers(z: Any) -> Any:
        return z**2, z**3, z**-1, z**1.5, z ** (1 + 2j), z.real ** (2 - 1j), z.real**2

    with torch.no_grad():
        found, expected = torch.compile(powers, backend="mgx_numba")(z), powers(z)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not [record for record in caplog.records if record.levelno >= 30]
