"""Random numbers of many steps by one Triton kernel: those of integrators.noise, which torch draws."""

import warnings

import pytest
import torch
from covering import covering
from devices import TRITON

from integrators import noise
from integrators.kernels import block_noise, fallback, gpu
from integrators.kernels.gpu import Launch
from recipe import RecipeError

DEVICE = torch.device(TRITON)
STEPS = range(2**33 - 1, 2**33 + 6)  # of four and of two that share words, some are not here
SHAPES = {str(shape): shape for shape in [(), (1,), (2,), (3,), (4, 2), (2100,), (0,)]}
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}  # of normals, whose uniform numbers are rounded near 1


@pytest.mark.parametrize("of", covering(SHAPES, SHAPES.keys() - {"(1,)", "(2100,)"}))
@pytest.mark.parametrize("kind", ["normal", "uniform", "integers"])
def test_numbers_are_those_of_torch(kind, of):
    """Uniform numbers and integers to the bit; 2100 sites are more than a program has, five chains no power of two."""
    shape = SHAPES[of]
    for dtype in [torch.int64] if kind == "integers" else ROUNDING:
        given = {"first_chain": 2**32 - 5, "device": DEVICE}
        given |= {"high": 2**31 - 1} if kind == "integers" else {"dtype": dtype}
        of_kernel, of_torch = (
            f(2**64 - 5, STEPS, 0xFFFE, 5, shape, **given)
            for f in (block_noise.functions_on(DEVICE)[kind], noise.FUNCTIONS[kind])
        )
        assert of_kernel.shape == of_torch.shape and of_kernel.dtype == of_torch.dtype == dtype
        if kind == "normal":
            assert torch.allclose(of_kernel, of_torch, rtol=0, atol=ROUNDING[dtype])
        else:
            assert torch.equal(of_kernel, of_torch)


def test_many_chains_of_one_site_are_in_several_programs():
    of_kernel = block_noise.filled("uniform", 3, range(5, 7), 1, 1000, (), dtype=torch.float32, device=DEVICE)
    assert torch.equal(of_kernel, noise.uniform(3, range(5, 7), 1, 1000, (), dtype=torch.float32, device=DEVICE))


def test_chains_and_steps_beyond_the_counters_are_refused():
    for given in ({"first_chain": 2**32 - 1}, {"steps": range(2**63, 2**63 + 2)}, {"seed": 2**64}):
        own = {"seed": 3, "steps": range(2), "draw": 0, "chains": 2, "shape": (3,), "dtype": torch.float32} | given
        with pytest.raises(RecipeError, match="is not an int in"):
            block_noise.filled("normal", **own, device=DEVICE)
    for high in (0, 2**31 + 1):
        with pytest.raises(RecipeError, match="high"):
            block_noise.filled("integers", 3, range(2), 0, 2, (3,), high=high, device=DEVICE)


def test_where_triton_launches_nothing_torch_draws_and_it_is_said(monkeypatch):
    def fails(launch):
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(Launch, "__call__", fails)
    gpu.check_launches.cache_clear()
    fallback._say_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="launches no kernel.*Failed to find C compiler"):
        assert block_noise.functions_on(DEVICE) == noise.FUNCTIONS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert block_noise.functions_on(DEVICE) == noise.FUNCTIONS
