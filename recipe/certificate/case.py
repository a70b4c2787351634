"""A recipe at a temperature and at values of its parameters, some blocks held still: what a certificate is about."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from sympy import Add, Dummy, Expr, Float, S

from ..declared import Block
from ..declared import temperature as T
from ..dynamics import Dynamics
from ..ensembles import Outer
from ..involutions import Involution
from ..marginal import Gaussian, eliminate_gaussians
from ..pieces import Jump
from ..swaps import Swap
from ..symbols import Potential, Total
from .explicit import Explicit
from .writing import written_out

SITES = 2  # number of sites for numerical questions
MOST_COORDINATES = 12  # most coordinates of a law that couples its sites
STATES = 2000

Answer = tuple[str, str, str]  # question, answer, verdict


class Case:
    """A recipe, without its frozen blocks, at a temperature and at values of its parameters, over some sites."""

    def __init__(
        self, recipe: Dynamics, temperature: float, freeze: Sequence[str], values: Mapping, sites: int = SITES
    ):
        self.declared = recipe
        self.temperature = temperature
        self.values = values
        self.sites_of_run = sites
        self.still = tuple(b for b in recipe.state if b.name in freeze)
        self.recipe = remainder(recipe, self.still)

    def over(self, sites: int, H: Expr | None = None) -> Explicit:
        """The recipe over a number of sites, with a symbolic energy for an opaque U; `H`: in place of its energy."""
        return written_out(self.recipe, sites, temperature=self.temperature, values=self.values, H=H)

    @cached_property
    def sites(self) -> int:
        """The number of sites over which tails are looked at: of the run, as far as they make few coordinates."""
        vectors = sum(b.is_vector for b in self.recipe.state)
        few = (MOST_COORDINATES - len(self.recipe.state) + vectors) // max(1, vectors)
        return min(self.sites_of_run, max(SITES, few))

    @cached_property
    def one_site(self) -> Explicit:
        """The recipe over one site, or over two if they are coordinates on a sphere."""
        return self.over(2 if self.recipe.spheres else 1)

    @cached_property
    def of_run(self) -> Explicit:
        """The recipe over the sites of a run where H or D couples them, else over one site."""
        return self.over(self.sites) if couples_sites(self.recipe) and not self.recipe.spheres else self.one_site

    @cached_property
    def explicit(self) -> Explicit:
        """The recipe over SITES sites."""
        return self.over(SITES)

    @cached_property
    def unlike(self) -> Explicit:
        """The recipe over one more site if sites share scalars or totals: with two, conserved planes may be missed.

        With outer products, whose number limits a rank, over the sites of a run, as far as they make few coordinates.
        """
        if self.recipe.D.has(Outer):
            return self.over(self.sites)
        shared = {b.is_vector for b in self.recipe.state} == {True, False} or self.recipe.D.has(Total)
        return self.over(SITES + 1) if shared else self.explicit

    @cached_property
    def auxiliary(self) -> tuple[tuple[Gaussian, ...], list[Block], Expr]:
        """The laws of the auxiliary blocks with Gaussian conditionals, the other such blocks, and the remaining H."""
        blocks = self.recipe.momenta + self.recipe.thermostats
        gaussians, rest = eliminate_gaussians(self.recipe.H, blocks)
        return gaussians, [b for b in blocks if b not in [g.block for g in gaussians]], rest

    @cached_property
    def weighted(self) -> "Case":
        """The case of the law of weighted draws, exp(-H/T) times the weights; this one where there are none."""
        if self.declared.weights is None:
            return self
        of_weighted = self.declared.altered(H=self.declared.weighted, weights=None)
        return Case(of_weighted, self.temperature, [b.name for b in self.still], self.values, self.sites_of_run)

    @cached_property
    def redrawn(self) -> set[Block]:
        """The blocks that jumps redraw at a nonzero rate."""
        return {b for jump in self.recipe.jumps.values() if not self._rate(jump).is_zero for b in jump.redrawn}

    @cached_property
    def turned(self) -> set[Block]:
        """The blocks of which involutions move each site alone, at a rate that is positive at every state."""
        jumps = (jump for jump in self.recipe.involutions if jump.moves_one)
        positive = (jump for jump in jumps if all(e.is_positive for e in jump.at_both_ends(self._rate(jump))))
        return {b for jump in positive for b in jump.blocks}

    def leaps(self, jump: Involution) -> bool:
        """Whether an involution changes H, and is balanced by its own way back."""
        H = self.recipe.H
        return jump.keeps(H) is None and jump.is_reversible(H) is not None

    def _rate(self, jump: Jump | Swap | Involution) -> Expr:
        """The rate of a jump at the values of parameters; 1 for a jump in every step."""
        rate = S.One if jump.rate is None else jump.rate
        numbers = {s: self.values.get(s.name, getattr(s, "default", None)) for s in rate.free_symbols}
        return rate.xreplace({s: Float(x) for s, x in {**numbers, T: self.temperature}.items() if x is not None})


def couples_sites(recipe: Dynamics) -> bool:
    """Whether D reads other sites, or H sums over them in another way than as terms: tails are of a number of sites.

    >>> from recipe import Recipe, total, vector
    >>> from sympy import log
    >>> theta = vector("theta")
    >>> energies = total(theta**2), log(1 + total(theta**2))
    >>> [couples_sites(Recipe(name="a", state=theta, H=H, D={theta: 1})) for H in energies]
    [False, True]
    """
    if any(t.has(*recipe.state) for e in recipe.D for t in e.atoms(Total, Potential, Outer)):
        return True
    sums = {e: Dummy(real=True) for e in recipe.H.atoms(Total) if e.has(*recipe.state)}
    if any(e.args[0].has(*sums) for e in sums):  # a sum within a sum
        return True
    of_sums = {*sums.values()}
    terms = Add.make_args(recipe.H.xreplace(sums))
    slopes = (term.diff(s) for term in terms for s in term.free_symbols & of_sums)
    return any(not slope.is_number and slope.has(*recipe.state, *of_sums) for slope in slopes)


def remainder(recipe: Dynamics, still: tuple[Block, ...]) -> Dynamics:
    """The dynamics of the moving blocks: without the rows and columns of frozen blocks in D and Q."""
    if not still:
        return recipe
    rows = [i for i, b in enumerate(recipe.state) if b not in still]
    state = tuple(recipe.state[i] for i in rows)
    targets = tuple(b for b in recipe.targets if b in state)
    return Dynamics(
        name=recipe.name,
        state=state,
        H=recipe.H,
        D=recipe.D.extract(rows, rows),
        Q=recipe.Q.extract(rows, rows),
        supplied=recipe.supplied.extract(rows, rows),
        transport=recipe.transport.extract(rows, [0]),
        target=targets if len(targets) > 1 else next(iter(targets or state)),
        pieces=recipe.pieces,
        requires=recipe.requires,
        adapt=recipe.adapt,
        jumps={letter: jump for letter, jump in recipe.jumps.items() if {*jump.blocks} <= {*state}},
        marginal=recipe.marginal if targets == recipe.targets else recipe.H,
        weights=recipe.weights,
        claim=recipe.claim,
    )
