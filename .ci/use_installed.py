"""Uses the package as it is installed, outside the checkout: `python -I use_installed.py LIST_OF_ITS_FILES`."""

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import torch

import integrators
import recipe
import samplers
from integrators.noise import Key
from recipe import Energy, Recipe, positive, potential, total, vector


def check_files(listed: list[str]) -> None:
    """Every file of the checkout's packages is installed: modules, stubs, py.typed and the texts of kernels."""
    installed = Path(sysconfig.get_path("purelib"))
    missing = [file for file in listed if not (installed / file).is_file()]
    assert not missing, f"not in the wheel: {', '.join(missing)}"
    assert all(f"{package}/py.typed" in listed for package in ("recipe", "integrators", "samplers"))
    assert Path(samplers.__file__).is_relative_to(installed)
    assert version("sde-recipe") == recipe.__version__ == integrators.__version__ == samplers.__version__


def langevin() -> Recipe:
    """A sampler declared here."""
    theta, p, gamma = vector("theta"), vector("p"), positive("gamma", default=1.0)
    return Recipe(
        name="langevin",
        state=(theta, p),
        target=theta,
        H=potential(theta) + total(p**2) / 2,
        D={p: gamma},
        Q={(theta, p): -1},
        scheme="B A O A B",
    )


def check_sampling() -> None:
    """It is proved, and samples a standard normal: 8,000 draws, whose mean square is 1 to a tenth."""
    sampler = langevin()
    assert sampler.check().ok
    draws = samplers.sample(
        sampler,
        lambda theta: (theta**2).sum() / 2,
        init=torch.zeros(2),
        chains=200,
        steps=800,
        warmup=200,
        thin=20,
        step_size=0.2,
        progress=False,
    )
    assert abs(draws["theta"].square().mean() - 1) < 0.1


def check_names() -> None:
    """What a type checker says of names and values is what they are."""
    theta = vector("theta")
    draws: samplers.Draws = samplers.sample(
        samplers.SGHMC,
        Energy(theta, U=total(theta**2) / 2),
        init=torch.zeros(2),
        steps=500,
        step_size=0.1,
        progress=False,
    )
    means: list[float] = draws.summary()["mean"].tolist()
    assert len(means) == 2 and draws.report().ok in (True, False, None)
    network = torch.nn.Linear(2, 1)
    optimizer: torch.optim.Optimizer = samplers.Optimizer(network.parameters(), samplers.SGHMC, lr=0.1, num_data=5)
    assert optimizer.state_dict()["param_groups"]


def check_kernel() -> None:
    """Where a C++ compiler is, the compiled step makes the numbers of the torch step."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        print("no C++ compiler: no kernel was compiled")
        return
    state = {"theta": torch.zeros(2, 100), "p": torch.ones(2, 100)}
    steps = [integrators.compile(langevin(), backend=backend) for backend in ("torch", "cpp")]
    plain, kernel = (
        step(state, 0.1, gradient=lambda theta: theta, noise=Key(seed=0, step=0))["theta"] for step in steps
    )
    assert torch.allclose(plain, kernel, atol=1e-6)


def check_command() -> None:
    """The command line is there, with the stock samplers."""
    for arguments in (["list"], ["show", "sgnht"], ["check", "sgld", "--json"]):
        result = subprocess.run(["recipe", *arguments], check=True, capture_output=True, text=True)
        assert "sg" in result.stdout


if __name__ == "__main__":
    check_files(Path(sys.argv[1]).read_text().splitlines())
    check_sampling()
    check_names()
    check_kernel()
    check_command()
    print(f"sde-recipe {samplers.__version__} as installed: declared, proved, sampled, compiled, listed")
