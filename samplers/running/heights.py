"""A check of the rise of U/T: chains whose U/T has risen too far cannot have the law exp(-U/T), and are flagged.

A law of d coordinates whose typical U/T is s above that of a point fills e^s times the volume about the point: each
coordinate ranges over e^(s/d) times its width there. For s = 100 d that is 3e43, beyond the range of float32. The point
of comparison is the start of a chain: U falls while a chain descends to its law.
"""

from dataclasses import dataclass

import torch

from recipe import Recipe
from recipe.errors import warn

from ..results.draws import Draws, named
from ..target.layout import position_of
from ..target.potential import VALUE
from .chains import Chains
from .inputs import Inputs
from .plan import Plan
from .recording import InMemory

FARTHEST = 100.0  # rise of U/T per coordinate
BATCHES = 8  # minibatches on which U is compared
ERRORS = 6.0  # standard errors by which a rise on minibatches is lowered
FAR = 1000.0  # times 1 + the largest site of the start: a site beyond is far
SHORTEST = 50  # steps of the shortest run that is checked
ENTRIES = 2**27  # entries of a block's draws that are searched for the largest, at most

Blocks = dict[str, torch.Tensor]  # the target by block, `(chains, *shape)`


def hottest(plan: Plan) -> float:
    """The greater of the first and the last temperature of a run."""
    return max(plan.temperature(0), plan.temperature(plan.length - 1))


def are_worth_a_look(plan: Plan, chains: Chains, start: Blocks, is_symbolic: bool) -> bool:
    """Whether a run is checked: `SHORTEST` steps or more, at T > 0; with a symbolic U, only where a site is far."""
    if plan.length < SHORTEST or hottest(plan) == 0:
        return False
    far = (chains.state[b].abs().max() > FAR * (1 + x.abs().max()) for b, x in start.items() if b in chains.state)
    return not is_symbolic or any(bool(is_far) for is_far in far)


@dataclass(frozen=True)
class Heights:
    """The rise of U/T of all chains; `start`: the target at the start by block; `where` begins the message."""

    recipe: Recipe
    inputs: Inputs
    start: Blocks
    where: str

    def flag(self, draws: Draws, chains: Chains, record: InMemory, plan: Plan) -> Draws:
        """The draws, with chains of too large a rise added to `diverged` at the last step, and a warning."""
        rise = self._rise([self._targets(chains.state), self._extremes(record)]) / hottest(plan)
        sites = sum(self.start[b.name][0].numel() for b in self.recipe.targets)
        flagged = (chains.alive & (rise > FARTHEST * sites)).nonzero().flatten().tolist()
        if flagged:
            lost = {str(chain): chains.moved for chain in flagged}
            draws.info["diverged"] = draws.info["diverged"] | lost
            warn(
                f"{self.where}: {len(flagged)} of {len(chains)} chains have left every scale of the law, and count as "
                f"diverged: {named({int(c): k for c, k in lost.items()}, 'by step')}. U/T has risen by "
                f"{float(rise[flagged].max()):.2g}, where no law of {sites} coordinates spreads over more than "
                f"{FARTHEST * sites:.3g}. Take a smaller step size, or other starts of what is adapted."
            )
        return draws

    def _rise(self, states: list[Blocks]) -> torch.Tensor:
        """The largest rise of U above the start of each chain, over `states`, `(chains,)`.

        On minibatches `ERRORS` standard errors are subtracted; a rise that is nan counts as 0.
        """
        each = []
        with torch.no_grad():
            for rows in self._rows():
                low, *others = [self._value(at, rows) for at in [self.start, *states]]
                each.append(torch.stack([U - low for U in others]))
        rises = torch.stack(each)  # (batches, states, chains)
        error = rises.std(0) / len(rises) ** 0.5 if len(rises) > 1 else torch.zeros_like(rises[0])
        return (rises.mean(0) - ERRORS * error.nan_to_num(0.0)).nan_to_num(0.0, posinf=torch.inf).max(0).values

    def _value(self, at: Blocks, rows: torch.Tensor | None) -> torch.Tensor:
        value = self.inputs.target.at(position_of(self.recipe, at), rows, VALUE).value
        assert value is not None
        return value.double()

    def _rows(self) -> list[torch.Tensor | None]:
        """The rows of the batches on which U is compared, equal for all chains; [None] for all data."""
        data = self.inputs.target.data
        chains = len(self.start[self.recipe.targets[0].name])
        if data is None or data.batch_size is None:
            return [None]
        rows = data.rows_for(self.inputs.seed, range(BATCHES), 0, 1, self.inputs.first_chain)
        assert rows is not None
        return [r.expand(chains, -1) for r in rows]

    def _targets(self, state: dict) -> Blocks:
        return {b.name: state[b.name] for b in self.recipe.targets}

    def _extremes(self, record: InMemory) -> Blocks:
        """The kept state with the largest site of each chain, `(chains, *shape)` by block; the start if none."""
        kept = len(record.step_sizes)
        values = {b.name: record.values[b.name][:, :kept] for b in self.recipe.targets}
        if not kept or any(x.numel() > ENTRIES for x in values.values()):
            return self._targets(self.start)
        sizes = torch.stack([x.flatten(2).abs().amax(2) if x.dim() > 2 else x.abs() for x in values.values()])
        largest = sizes.amax(0).argmax(1)
        at = torch.arange(len(largest), device=largest.device)
        return {name: x[at, largest].to(self.start[name].device) for name, x in values.items()}
