"""The pictures of the pages, from the code that the pages show.

    python examples/pictures.py            # all of them, two minutes
    python examples/pictures.py banana magnetic

`banana` is the README's first run, on the contours of its density, `words` what guide/words.md draws, and `correction`,
`work` and `bias` belong to the pages that explain these, all in examples/guide/pictures/, and drawn anew with the site;
the others are draws of the gallery's samplers beside their law, a tenth of the steps of its
table, in examples/gallery/pictures/.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sympy import cos

EXAMPLES = Path(__file__).parent
sys.path.insert(0, str(EXAMPLES / "gallery"))

from exhibit import Exhibit  # noqa: E402
from run import GALLERY  # noqa: E402

import samplers  # noqa: E402
from recipe import Energy, Recipe, total, vector  # noqa: E402
from samplers.testing.densities import density  # noqa: E402

LEVELS = [0.02, 0.1, 0.3, 0.6, 0.9]  # of the density, by its maximum
COLOURS = 16
SHOWN = 2000  # draws of a sampler of the gallery in a plane


def banana_contours(axes: Axes) -> None:
    """The density of the README's energy, which the gallery takes too."""
    x, y = np.meshgrid(np.linspace(-3.2, 3.2, 200), np.linspace(-2.5, 7, 200))
    axes.contour(x, y, np.exp(-(x**2) / 2 - (y - x**2) ** 2 / 2), LEVELS, colors="black", linewidths=0.8)
    axes.set(xlim=(-3.2, 3.2), ylim=(-2.5, 7))


def save(figure: Figure, path: Path, dpi: int) -> None:
    """A picture of few colours: a quarter of its bytes."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=dpi)
        Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    plt.close(figure)


def executed(page: Path, blocks: int | None = None) -> dict:
    """The names of a session of the Python blocks of a page, or of so many of them."""
    namespace: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)[:blocks]:
        # a page of this repository
        exec(compile(block, page.name, "exec"), namespace)
    return namespace


def draw_words(path: Path) -> None:
    """Run the page, which draws."""
    plt.figure(figsize=(6, 3.6), layout="constrained")
    with contextlib.chdir(path.parent):
        executed(EXAMPLES / "guide" / "words.md")
    save(plt.gcf(), path, 80)


def draw_banana(path: Path) -> None:
    """Run the first Python block of the README, and draw."""
    draws = executed(EXAMPLES.parent / "README.md", 1)["draws"]["theta"]
    figure, (plane, marginal) = plt.subplots(1, 2, figsize=(8, 3.6), width_ratios=(3, 2), layout="constrained")
    points = draws[:, ::2].reshape(-1, 2)
    plane.plot(*points.T, ".", markersize=1.5, alpha=0.4, color="tab:blue", label=f"{len(points):,} draws")
    banana_contours(plane)
    plane.set(xlabel="theta[0]", ylabel="theta[1]", title="draws, and exp(-U)")
    marginal.hist(draws[..., 0].reshape(-1).numpy(), bins=60, density=True, color="tab:blue", alpha=0.4, label="draws")
    grid = torch.linspace(-3.2, 3.2, 200)
    marginal.plot(grid, torch.exp(-(grid**2) / 2) / (2 * torch.pi) ** 0.5, color="black", label="its law, N(0, 1)")
    marginal.set(xlabel="theta[0]", yticks=[], ylim=(0, 0.53))
    marginal.legend(frameon=False, loc="upper right", ncols=2)
    save(figure, path, 90)


def draw_correction(path: Path) -> None:
    """Draws of a diffusion that reads its state, beside their law and beside that of the SDE without Gamma."""
    theta = vector("theta")
    langevin = Recipe(name="langevin", state=(theta,), H=total(theta**2) / 2, D={theta: 1 + theta**2})
    run = dict(init=torch.zeros(1), chains=2000, steps=400, warmup=200, thin=20, step_size=0.01, progress=False)
    draws = samplers.sample(langevin, scheme="Euler", **run)["theta"]
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.hist(draws.reshape(-1).numpy(), bins=np.linspace(-4, 4, 61), density=True, color="tab:blue", alpha=0.4)
    at = np.linspace(-4, 4, 401)
    for weights, style, label in [
        (np.exp(-(at**2) / 2), "black", "exp(-U)"),
        (np.exp(-(at**2) / 2) / (1 + at**2), "tab:red", "without Gamma:\nexp(-U)/D"),
    ]:
        axes.plot(at, weights / np.trapezoid(weights, at), color=style, label=label)
    axes.set(xlabel="theta, of which D = 1 + theta^2", yticks=[])
    axes.legend(frameon=False, loc="upper left")
    save(figure, path, 80)


def draw_work(path: Path) -> None:
    """E theta^2 on a bowl with ripples against the step size, accepted and not, and the share of accepted steps."""
    theta = vector("theta")
    ripples = Energy(theta, U=total(theta**2 / 2 + cos(2 * theta)))
    at = np.linspace(-9, 9, 2001)
    exact = np.average(at**2, weights=np.exp(-(at**2) / 2 - np.cos(2 * at)))
    run = dict(init=torch.zeros(1), chains=2000, steps=400, warmup=50, scheme="O B A B O", progress=False)
    sizes = [0.2, 0.4, 0.6, 0.8]
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    shares = axes.twinx()
    for accepted, label in [(False, "O B A B O"), (True, "O B A B O, accepted or rejected")]:
        runs = [
            samplers.sample("underdamped-langevin", ripples, step_size=h, metropolis=accepted, **run) for h in sizes
        ]
        axes.plot(sizes, [float(draws["theta"].square().mean() / exact - 1) for draws in runs], "o-", label=label)
    shares.plot(sizes, [np.mean(draws.info["acceptance"]) for draws in runs], ":", color="black")
    shares.set(ylim=(0, 1.05), ylabel="share of accepted steps (dotted)")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="step size h", ylabel="relative error of E theta^2")
    axes.legend(frameon=False, loc="center left")
    save(figure, path, 80)


def draw_bias(path: Path) -> None:
    """The page's run at several step sizes, and what accuracy() says of each, beside the exact bias."""
    normal = executed(EXAMPLES / "guide" / "bias.md")["normal"]
    run = dict(init=torch.zeros(1), chains=64, steps=3000, warmup=100, progress=False)
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for h in (0.1, 0.2, 0.3, 0.4, 0.5):
        figures = samplers.sample("sgld", normal, step_size=h, **run).accuracy(progress=False).figures
        sd = next(f for f in figures if f.statistic == "sd")
        first = h == 0.1
        axes.plot(h, sd.value - 1, "o", color="tab:blue", label="error of the draws" if first else None)
        label = "the bias that accuracy() states" if first else None
        axes.errorbar(h + 0.006, sd.step, 2 * sd.step_error, fmt="s", color="tab:orange", capsize=3, label=label)
    at = np.linspace(0, 0.52, 100)
    axes.plot(at, (1 - at / 2) ** -0.5 - 1, color="black", label="exact")
    axes.set(xlabel="step size h", ylabel="error of the standard deviation")
    axes.legend(frameon=False)
    save(figure, path, 80)


def draw_exhibit(path: Path, exhibit: Exhibit) -> None:
    """The draws of a sampler of the gallery: on the contours of the banana, or beside the density of its one site."""
    coordinates, weights = exhibit.drawn(exhibit.steps // 10)
    draws = [x.reshape(-1).numpy() for x in coordinates.values()]
    if exhibit.recipe.weights is not None:  # as many draws of equal weight
        shares = weights.double().reshape(-1).numpy() / weights.double().sum().item()
        chosen = np.random.default_rng(0).choice(len(shares), len(shares), p=shares)
        draws = [x[chosen] for x in draws]
    figure, axes = plt.subplots(figsize=(3.2, 2), layout="constrained")
    if exhibit.recipe.potential is not None:
        axes.plot(*(x[:: max(1, len(x) // SHOWN)] for x in draws), ".", markersize=1.5, alpha=0.5, color="tab:blue")
        banana_contours(axes)
    else:
        values = draws[0]
        bins = np.linspace(*np.quantile(values, [0.001, 0.999]), 41)
        axes.hist(values, bins, density=True, color="tab:blue", alpha=0.4)
        axes.stairs(law(exhibit, bins), bins, color="black")
        axes.set(yticks=[])
    axes.tick_params(labelsize=7)
    save(figure, path, 100)


def law(exhibit: Exhibit, bins: np.ndarray) -> np.ndarray:
    """The mean density of each bin, by the quadrature that the table takes."""
    if exhibit.density is not None:
        grid = np.linspace(-40, 40, 80_001)
        points, weights = grid, np.array([exhibit.density(z) for z in grid])
    else:
        of_state, weights = density(exhibit.recipe.H, exhibit.recipe.state)
        points = of_state[exhibit.recipe.targets[0]]
    order = np.argsort(points, kind="stable")
    below = np.interp(bins, points[order], np.cumsum(weights[order]) / np.sum(weights))
    return np.diff(below) / np.diff(bins)


def main(names: list[str]) -> None:
    """Draw the named pictures, or all."""
    for name in names or [*OF_PAGES, *GALLERY]:
        if name in OF_PAGES:
            OF_PAGES[name](EXAMPLES / "guide" / "pictures" / f"{name}.png")
        else:
            draw_exhibit(EXAMPLES / "gallery" / "pictures" / f"{name}.png", GALLERY[name])
        print(name, flush=True)


OF_PAGES = {
    "banana": draw_banana,
    "words": draw_words,
    "correction": draw_correction,
    "work": draw_work,
    "bias": draw_bias,
}


if __name__ == "__main__":
    main(sys.argv[1:])
