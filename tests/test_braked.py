"""Friction at a finite speed: `braked` of every backend beside arithmetic of 30 digits, in units of rounding."""

import ctypes

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from devices import TRITON

from integrators.backends import torch_prelude, triton_prelude
from integrators.backends.cpp_sweep import PRELUDE
from integrators.kernels import native

SIZES = [1e-15, 1e-6, 1e-3, *np.geomspace(0.01, 30, 23).tolist(), 1e3, 1e6]
TIMES = [1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.37, 1.0, 3.0, 17.0, 40.0]
EXTREME = [(0.0, 1.0), (0.0, -1e6), (1.0, 1e6), (1.0, -1e6), (-2.0, 0.0), (1e30, 7.0), (-3e37, 1e9), (1e-30, -80.0)]
TEXT = """
extern "C" void all(REAL* y, const REAL* s, int n) {
    for (int j = 0; j < n; ++j) y[j] = braked<REAL>(y[j], s[j]);
}
"""


def exact(y, s):
    """y, and how many roundings its error is made of: those of y, s and the root, as they are passed on."""
    with mpmath.workdps(30):
        y, s = mpmath.mpf(float(y)), mpmath.mpf(float(s))
        if y == 0:
            return 0.0, 1.0
        level = mpmath.sqrt(1 + y * y) - mpmath.asinh(1 / abs(y)) - s
        v = min(level - 1 + mpmath.log(2), mpmath.log(max(level + 1, 1)))
        for _ in range(100):
            root = mpmath.sqrt(1 + mpmath.exp(2 * v))
            change = (root - mpmath.asinh(mpmath.exp(-v)) - level) / root
            v -= change
            if abs(change) < 1e-25:
                break
        return mpmath.sign(y) * mpmath.exp(v), float(1 + (mpmath.sqrt(1 + y * y) + abs(s)) / root)


def roundings(values, y, s):
    """The largest error in units of rounding, of values that are normal numbers."""
    found = []
    for value, *at in zip(values, y, s):
        expected, count = exact(*at)
        if abs(expected) > np.finfo(values.dtype).tiny:
            found.append(float(abs(mpmath.mpf(float(value)) / expected - 1)) / np.finfo(values.dtype).eps / count)
    return max(found)


@triton.jit
def kernel(y, s, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, triton_prelude.braked(tl.load(y + at), tl.load(s + at)))


def by_triton(y, s):
    padded = [torch.nn.functional.pad(torch.tensor(a), (0, 1024 - len(y))).to(TRITON) for a in (y, s)]
    out = torch.empty_like(padded[0])
    with np.errstate(over="ignore"):
        kernel[(1,)](*padded, out, 1024)
    return out.cpu().numpy()[: len(y)]


def by_cpp(y, s):
    out, real = y.copy(), {"float32": "float", "float64": "double"}[y.dtype.name]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, s)]
    native.library(PRELUDE + TEXT, (f"REAL={real}",)).all(*pointers, len(y))
    return out


def by_torch(y, s):
    return torch_prelude.braked(torch.tensor(y), torch.tensor(s)).numpy()


def on_a_grid(dtype):
    y, s = np.meshgrid([*SIZES, -1.7], [*TIMES, *(-t for t in TIMES)])
    return y.ravel().astype(dtype), s.ravel().astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("braked", [by_triton, by_torch, by_cpp])
def test_braked_is_right_to_a_few_roundings(braked, dtype):
    y, s = on_a_grid(dtype)
    assert roundings(braked(y, s), y, s) <= 2.5
    y, s = np.array(EXTREME, dtype).T.copy()
    values = braked(y, s)
    assert np.isfinite(values).all() and (values[:3] == 0).all() and roundings(values, y, s) <= 2.5


def test_torch_differentiates_it_also_at_rest():
    """dy(s)/dy is e^-s at y = 0, and y(s)/y sqrt((1 + y^2)/(1 + y(s)^2)) elsewhere."""
    y = torch.tensor([0.0, 0.3, -2.0], dtype=torch.float64, requires_grad=True)
    after = torch_prelude.braked(y, torch.tensor(0.7, dtype=torch.float64))
    (slope,) = torch.autograd.grad(after.sum(), y)
    at, z = y.detach(), after.detach()
    expected = torch.where(at == 0, torch.tensor(-0.7).double().exp(), z / at * ((1 + at**2) / (1 + z**2)).sqrt())
    assert torch.allclose(slope, expected, rtol=1e-6, atol=0)
