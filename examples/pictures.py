"""The pictures of the pages, from the code that the pages show.

    python examples/pictures.py

writes examples/guide/pictures/banana.png: the draws of the README's first run, on the contours of its density.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).parent.parent
LEVELS = [0.02, 0.1, 0.3, 0.6, 0.9]  # of the density, by its maximum


def main() -> None:
    """Run the first Python block of the README, and draw."""
    namespace: dict = {}
    (first, *_) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    exec(compile(first, "README.md", "exec"), namespace)
    draws, U = namespace["draws"]["theta"], namespace["U"]
    x, y = torch.meshgrid(torch.linspace(-3.2, 3.2, 200), torch.linspace(-2.5, 7, 200), indexing="xy")
    density = torch.exp(-U((x, y)))
    figure, (plane, marginal) = plt.subplots(1, 2, figsize=(8, 3.6), width_ratios=(3, 2), layout="constrained")
    points = draws[:, ::4].reshape(-1, 2)
    plane.plot(*points.T, ".", markersize=1.5, alpha=0.4, color="tab:blue", label=f"{len(points):,} draws")
    plane.contour(x, y, density, LEVELS, colors="black", linewidths=0.8)
    plane.set(xlabel="theta[0]", ylabel="theta[1]", xlim=(-3.2, 3.2), ylim=(-2.5, 7), title="draws, and exp(-U)")
    marginal.hist(draws[..., 0].reshape(-1).numpy(), bins=60, density=True, color="tab:blue", alpha=0.4, label="draws")
    grid = torch.linspace(-3.2, 3.2, 200)
    marginal.plot(grid, torch.exp(-(grid**2) / 2) / (2 * torch.pi) ** 0.5, color="black", label="its law, N(0, 1)")
    marginal.set(xlabel="theta[0]", yticks=[], ylim=(0, 0.53))
    marginal.legend(frameon=False, loc="upper right", ncols=2)
    figure.savefig(ROOT / "examples" / "guide" / "pictures" / "banana.png", dpi=90)


if __name__ == "__main__":
    main()
