"""A black box under an audit: runs of it, with the time of a run and all comparisons so far."""

import torch

from .black_box import BlackBox
from .laws import Law
from .plan import Plan
from .verdicts import Cell, Comparisons

FAR = 1e4  # standard deviations from the mean, from which on a finite chain counts as diverged


class Experiment:
    """The runs of a black box and their comparisons; `time`, of a run, grows until the start is forgotten."""

    def __init__(self, box: BlackBox, plan: Plan):
        self.box = box
        self.plan = plan
        self.time = plan.time
        self.cells: list[Cell] = []
        self.comparisons = Comparisons()
        self.generator = torch.Generator().manual_seed(plan.seed)

    def seed(self) -> int:
        """A new seed."""
        return int(torch.randint(2**31 - 1, (), generator=self.generator))

    def draw(self, law: Law, T: float) -> torch.Tensor:
        """Exact draws, (chains, dim)."""
        return law.draw(self.plan.chains, T, self.generator)

    def run(
        self, law: Law, init: torch.Tensor, T: float, h: float, *, seed: int | None = None, time: float | None = None
    ) -> torch.Tensor:
        """The last draws of chains from `init`, (chains, dim); by default with a new seed, for the time of a run."""
        if seed is None:
            seed = self.seed()
        return self.box(law, init, time=self.time if time is None else time, step_size=h, temperature=T, seed=seed)

    def stays(self, law: Law, T: float, h: float, theta: torch.Tensor) -> bool:
        """Whether every chain stays finite; if not, searches for a stable step size, which the finding names."""
        share = _lost(law, T, theta)
        if not share:
            return True
        init = self.draw(law, T)
        smaller = (h / 2**i for i in range(1, 4))
        stable = next((h for h in smaller if not _lost(law, T, self.run(law, init, T, h))), None)
        advice = "and so at h/2, h/4 and h/8"
        if stable is not None:
            advice = f"all stay finite for {self.time:g} units of time at {stable:g}: pass a step_size of that, or less"
        return self.comparisons.keeps(
            "stability",
            "chains that leave the finite numbers",
            share,
            0.0,
            "theta stays finite",
            "diverges",
            f"on the {law.name}, T = {T:g}, h = {h:g}, {share:.2%} of the chains leave the finite numbers; {advice}",
        )


def _lost(law, T, theta):
    """The share of chains that are not finite, or beyond FAR standard deviations."""
    mean, sd, *_ = law.moments(T)
    return 1 - float((abs(theta.double().numpy() - mean) < FAR * sd).all(1).mean())
