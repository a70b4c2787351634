"""Santa on a double well: Chen, Carlson, Gan, Li & Carin (2016), the illustration of annealing.

All chains start in the shallow well. Santa explores while the temperature falls, then refines: temperature 0,
thermostat frozen. RMSprop, the paper's comparison, is pSGLD at temperature 0. The paper does not print its potential;
this one has its minima at -2.94 (global) and 2.22, and a barrier at -.04. The result hangs on the cooling, not
printed either: an inverse temperature of sqrt(t), as in the released code, freezes at once here, and next to no chain
crosses. The temperature must also end low, or some thermostats are frozen at negative values and the refinement
diverges.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy
import sympy
import torch
from numpy import ndarray

from recipe import Energy
from samplers import SANTA, Phase, PSGLDSameStep, sample

matplotlib.use("Agg")


def U(theta):  # of a number, an array or a symbol
    """The potential: a shallow well at 2.22, a deep one at -2.94."""
    return (theta + 4) * (theta + 1) * (theta - 1) * (theta - 3) / 14


x = sympy.Symbol("x", real=True)
ENERGY = Energy(x, U=U(x))
GLOBAL, BARRIER, _ = (float(root) for root in sympy.real_roots(U(x).diff(x)))
START, STEP, RECORD = 2.5, 0.1, 10
HOT, COLD = 3.0, 0.1  # temperatures at the start and the end of the exploration


def cooling(steps: int) -> Callable[[int], float]:
    """Temperatures that fall from HOT to COLD by the same factor in every step, and stay there."""
    return lambda k: HOT * (COLD / HOT) ** min(1.0, k / steps)


def boltzmann(T: float) -> float:
    """The probability of the global well at temperature T."""
    grid = numpy.linspace(-7, 7, 4001)
    weight = numpy.exp(-(U(grid) - U(GLOBAL)) / T)
    return weight[grid < BARRIER].sum() / weight.sum()


def race(chains: int, explore: int, refine: int) -> dict[str, ndarray]:
    """The paths of theta by method, (chains, records); Santa as in the paper, and without each of its two ideas."""
    settings = dict(init=torch.tensor([START]), chains=chains, step_size=STEP, thin=RECORD, seed=0, progress=False)
    santa = dict(sigma=0.99, **settings)
    cold = santa | {"init": {"theta": torch.tensor([START]), "xi": torch.tensor([1.0])}}
    rmsprop = settings | {"step_size": STEP**2}
    steps, falling = explore + refine, cooling(explore)
    both = [Phase(explore, temperature=falling), Phase(refine, temperature=0.0, freeze="xi")]
    runs = {
        "Santa": sample(SANTA, ENERGY, phases=both, **santa),
        "exploration only": sample(SANTA, ENERGY, phases=[Phase(steps, temperature=falling)], **santa),
        "refinement only": sample(SANTA, ENERGY, phases=[Phase(steps, temperature=0.0, freeze="xi")], **cold),
        "RMSprop": sample(PSGLDSameStep, ENERGY, temperature=0.0, steps=steps, **rmsprop),
    }
    return {name: draws["theta"][..., 0].numpy() for name, draws in runs.items()}


def table(paths: dict[str, ndarray]) -> str:
    """Where each method ends: the fraction in the global well, and U above its minimum."""
    lines = [f"{'':20}{'in the global well':>20}{'mean U - min U':>18}{'largest in that well':>22}"]
    for name, path in paths.items():
        end = path[:, -1]
        excess = U(end) - U(GLOBAL)
        largest = f"{excess[end < BARRIER].max():.1e}" if (end < BARRIER).any() else "-"
        lines.append(f"{name:20}{(end < BARRIER).mean():20.3f}{excess.mean():18.3f}{largest:>22}")
    return "\n".join(lines)


def picture(path: Path, paths: dict[str, ndarray], explore: int) -> None:
    """The potential, some paths, and the fraction in the global well beside that of equilibrium at each temperature."""
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    grid = numpy.linspace(-4.5, 3.7, 400)
    left.plot(grid, U(grid), color="k")
    left.plot(START, U(START), "o", color="tab:red")
    left.set(xlabel="theta", ylabel="U")
    steps = RECORD * numpy.arange(1, paths["Santa"].shape[1] + 1)
    middle.plot(steps, paths["Santa"][:3].T, lw=0.6, color="tab:blue")
    middle.plot(steps, paths["RMSprop"][0], color="tab:red", label="RMSprop")
    middle.plot([], [], color="tab:blue", label="Santa, three chains")
    middle.axvline(explore, color="0.7", ls=":")
    middle.set(xlabel="step", ylabel="theta")
    middle.legend()
    right.plot(steps, (paths["Santa"] < BARRIER).mean(0), color="tab:blue", label="Santa")
    right.plot(steps, (paths["RMSprop"] < BARRIER).mean(0), color="tab:red", label="RMSprop")
    explored = steps[steps <= explore]
    equilibrium = [boltzmann(cooling(explore)(k)) for k in explored]
    right.plot(explored, equilibrium, color="k", ls="--", label="equilibrium at T_k")
    right.set(xlabel="step", ylabel="fraction in the global well")
    right.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> dict[str, ndarray]:
    """Run the example; returns the paths by method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=6000, help="steps of the exploration; a third for refinement")
    parser.add_argument("--out", type=Path, default=Path("out/santa_double_well"), help="folder for the picture")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    paths = race(options.chains, options.steps, options.steps // 3)
    print(table(paths))
    print(f"equilibrium: {boltzmann(HOT):.3f} at T = {HOT:g}, {boltzmann(1.0):.3f} at 1, {boltzmann(0.5):.3f} at .5")
    picture(options.out / "double_well.png", paths, options.steps)
    print(f"\n{options.out / 'double_well.png'}")
    return paths


if __name__ == "__main__":
    main()
