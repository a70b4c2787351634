"""The posterior draws of a sampling run."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recipe.arguments import integer, number
from recipe.errors import RecipeError, did_you_mean, warn
from recipe.results import aligned, html_table

from . import plots
from .accuracy import Accuracy, accuracy_of
from .draws_file import read_draws, write_draws
from .findings import Report
from .functional import Functional
from .predictive import predictions_of
from .record import arviz_of, named
from .report import ALPHA, TOLERANCE, TargetDraws, report_of
from .tensor_checks import checked_log_weights, checked_step_sizes, refuse_weights

if TYPE_CHECKING:
    import pandas


class UnknownBlock(RecipeError, KeyError):
    """The RecipeError of a missing key, so that `in` and `get` work as in any mapping."""

    __str__ = ValueError.__str__


class Draws(Mapping):
    """Posterior draws by block name, with the record of their run.

    Each value has the shape (chains, draws, *block shape), as in ArviZ; `info` is plain JSON data such as recipe,
    scheme, step_size, seed and `diverged`, {chain: step}; `step_sizes` has the step size of each draw, where it varied,
    in units of time; `log_weights` the logarithm of the weight of each draw, `(chains, draws)`, where they are not
    equal. `again` is the run, a `samplers.running.repeated.PairedRun`, for `accuracy` and `report`: it keeps energy and
    data in memory, and is neither saved nor copied. Raises RecipeError when the shapes disagree, `info` is not JSON, or
    there is not one step size > 0 per draw.

    >>> draws = Draws({"theta": torch.zeros(4, 100, 3)}, info={"recipe": "sghmc", "scheme": "baoab"})
    >>> draws
    sghmc, baoab: 4 chains x 100 draws
      theta  (3,)  float32
    >>> draws["theta"].shape
    torch.Size([4, 100, 3])
    """

    __slots__ = ("_values", "_info", "_step_sizes", "_log_weights", "_again", "_accuracy", "_report")
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self,
        values: Mapping[str, torch.Tensor],
        *,
        info: Mapping[str, Any],
        step_sizes: Sequence[float] | np.ndarray | torch.Tensor | None = None,
        log_weights: Any = None,
        again: Any = None,
    ):
        for name, value in values.items() if isinstance(values, Mapping) else [("values", values)]:
            if not torch.is_tensor(value):
                what = f"{name} is a {type(value).__name__}, not a tensor"
                raise RecipeError("draws", what, do="Pass a dict of tensors: torch.as_tensor(x), say.")
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        sizes = {shape[:2] for shape in shapes.values()}
        if len(sizes) != 1 or len(*sizes) != 2:
            what = f"the blocks have the shapes {shapes}"
            raise RecipeError("draws", what, do="Shape each (chains, draws, ...), with the same chains and draws.")
        self._values = {name: value.detach() for name, value in values.items()}
        try:
            self._info = json.loads(json.dumps(dict(info)))
        except (TypeError, ValueError) as error:
            what = f"info is not plain JSON data ({error})"
            raise RecipeError("draws", what, do="Use text, numbers, lists and dicts.") from error
        self._step_sizes = None if step_sizes is None else checked_step_sizes(step_sizes, self.draws)
        self._log_weights = None
        if log_weights is not None:
            self._log_weights = checked_log_weights(log_weights, self.chains, self.draws, self._sound)
        self._again = again
        self._accuracy: Accuracy | None = None
        self._report: Report | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {name: getattr(self, name) for name in self.__slots__} | {"_again": None}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._values:
            raise UnknownBlock("draws", f"there is no block {name!r}", do=did_you_mean(name, self._values))
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "\n  ".join([self._title(), *aligned(self._shapes()), *self._verdicts()])

    def _repr_html_(self) -> str:
        return html_table(self._title(), ("block", "shape", "dtype"), self._shapes(), self._verdicts())

    def _shapes(self) -> list[tuple[str, str, str]]:
        return [(name, str(tuple(x.shape[2:])), str(x.dtype).removeprefix("torch.")) for name, x in self.items()]

    def _verdicts(self) -> list[str]:
        """The lost chains, and the verdicts of the report and of the accuracy, where there are some."""
        lines = [f"diverged: {named(self.diverged, 'at step')}"] if self.diverged else []
        report = self.info.get("report") if self._report is None else self._report.verdict
        lines += [report] if report else []
        w = self.weights
        if w is not None:
            lines.append(f"weighted: they count as {float(w.sum() ** 2 / w.square().sum()):.0f} equal ones")
        return lines if self._accuracy is None else lines + self._accuracy.verdict.splitlines()

    def _title(self) -> str:
        run = ", ".join(str(self.info[key]) for key in ("recipe", "scheme") if key in self.info) or "draws"
        if self.info.get("repeat", 1) > 1:
            run += f", repeat {self.info['repeat']}"
        return f"{run}: {self.chains} chains x {self.draws} draws"

    @property
    def info(self) -> dict[str, Any]:
        """The record of the run, plain JSON data (so the chains in `diverged` are text here)."""
        return self._info

    @property
    def step_sizes(self) -> torch.Tensor | None:
        """The step size of each draw, `(draws,)` in float64 on the CPU; None if constant."""
        return self._step_sizes

    @property
    def log_weights(self) -> torch.Tensor | None:
        """The logarithm of the weight of each draw, `(chains, draws)` in float64 on the CPU; None if all are equal."""
        return self._log_weights

    @property
    def weights(self) -> torch.Tensor | None:
        """The weight of each draw, `(chains, draws)`, of mean 1 over chains that did not diverge; None if all equal.

        They are 0 in chains that diverged. Means of functions of draws, of predictions say, are to be taken by them.

        >>> Draws({"theta": torch.zeros(1, 2)}, info={}, log_weights=torch.tensor([[0.0, 1.0]])).weights
        tensor([[0.5379, 1.4621]], dtype=torch.float64)
        """
        if self._log_weights is None:
            return None
        weights = torch.zeros_like(self._log_weights)
        sound = self._log_weights[self._sound]
        weights[self._sound] = sound.flatten().softmax(0).reshape(sound.shape) * sound.numel()
        return weights

    def weights_of(self, chains: list[int]) -> torch.Tensor | None:
        """The weights of some chains; None if all are equal."""
        return None if self._log_weights is None else self.weights[chains]  # type: ignore[index]

    @property
    def chains(self) -> int:
        """The number of chains."""
        return next(iter(self._values.values())).shape[0]

    @property
    def draws(self) -> int:
        """The number of draws in each chain."""
        return next(iter(self._values.values())).shape[1]

    @property
    def diverged(self) -> dict[int, int]:
        """The step at which each diverged chain left the finite numbers; empty if none did."""
        return {int(chain): step for chain, step in (self.info.get("diverged") or {}).items()}

    def to_arviz(self, *, log_likelihood: Any = None) -> Any:
        """An arviz.InferenceData, with ArviZ 1 an xarray.DataTree: a float64 copy in its group posterior, and `info`.

        `log_likelihood`: log p(datum | draw), `(chains, draws, data)`, or a dict of such tensors by the name of the
        observed, as `predict` returns them, for the group log_likelihood, which arviz.loo reads. Raises RecipeError
        for other numbers of chains and draws, for weighted draws, and where ArviZ cannot be imported.

        >>> dict(Draws({"theta": torch.zeros(2, 9, 3)}, info={}).to_arviz().posterior.sizes)
        {'chain': 2, 'draw': 9, 'theta_dim_0': 3}
        """
        do = "Take summary(), average(), or draws.weights as the weights of draws.values()."
        refuse_weights(self._log_weights, "draws, to_arviz", "ArviZ would count them equally", do)
        return arviz_of(self, log_likelihood)

    def predict(
        self, model: Callable[..., Any], X: Any, *, batch_size: int | None = None, thin: int = 1
    ) -> torch.Tensor:
        """The predictions of each draw for the rows of X, `(chains, draws, data, ...)`, `batch_size` rows at a time.

        `model`: a function (theta, rows) -> `(rows, ...)` of one draw, theta a tensor, or a dict by name where that of
        the energy was one; or the nn.Module that the run began with, which is called in eval mode with the draws as its
        parameters. `X`: a tensor, or a tuple of tensors that share their rows; every `thin`-th draw is taken. Logits go
        into `samplers.Predictive`, the mean of a regression into `samplers.scores`, log p(y | theta) of each row into
        `to_arviz`. No gradient is kept. Raises RecipeError for rows that the model loses, and counts < 1.

        >>> draws = Draws({"theta": torch.tensor([[1.0, 2.0]])}, info={})
        >>> draws.predict(lambda theta, x: theta * x, torch.tensor([1.0, 10.0, 100.0]))
        tensor([[[  1.,  10., 100.],
                 [  2.,  20., 200.]]])
        """
        if self._log_weights is not None:
            warn(f"predict: draws weigh unequally: take means by draws.weights{f'[:, ::{thin}]' if thin > 1 else ''}")
        return predictions_of(self._targets(), model, X, batch_size=batch_size, thin=thin, by_name=self.by_name)

    @property
    def by_name(self) -> bool:
        """Whether functions of theta take a dict by name, as the energy of the run did."""
        return len(self._targets()) > 1 or bool(self.info.get("by_name"))

    def _targets(self) -> dict[str, torch.Tensor]:
        """The draws of the target, without the blocks beside it that were kept."""
        return {name: self[name] for name in self.info.get("targets", self)}

    def average(self, name: str, function: Callable | None = None) -> torch.Tensor:
        """The mean of f(theta), weighted by step size: sum_k h_k f(theta_k) / sum_k h_k, over draws and chains.

        Where draws have weights psi_k of their own, by h_k psi_k.

        `function` maps `(chains, draws, *shape)` to the like, one value per draw or per component, such as
        torch.square; the identity by default. Weights are equal without step sizes. Returns `(*shape)` in float64.
        Chains that diverged are left out, with a warning. Raises RecipeError for an unknown name, where no chain is
        left, or where the function loses the chains and draws. Source: Welling & Teh 2011.

        >>> draws = Draws({"theta": torch.tensor([[1.0, 4.0]])}, info={}, step_sizes=[0.2, 0.1])
        >>> draws.average("theta"), draws.average("theta", torch.square)
        (tensor(2., dtype=torch.float64), tensor(6., dtype=torch.float64))
        """
        sound = self._chains_with_draws("average")
        values = self[name][sound]
        f = values if function is None else function(values)
        if not torch.is_tensor(f) or f.shape[:2] != values.shape[:2]:
            got = f"shape {tuple(f.shape)}" if torch.is_tensor(f) else type(f).__name__
            what = f"the function turns shape {tuple(values.shape)} into {got}"
            raise RecipeError("draws, average", what, do="Keep the axes of chains and draws: pass torch.square, say.")
        h = torch.ones(self.draws, dtype=torch.float64, device="cpu") if self.step_sizes is None else self.step_sizes
        w = self.weights_of(sound)
        if w is not None:
            return torch.tensordot((h * w / (h * w).sum()).to(f.device), f.to(torch.float64), dims=2)
        return torch.tensordot((h / h.sum()).to(f.device), f.to(torch.float64).mean(0), dims=1)

    def summary(self, var_names: str | Iterable[str] | None = None) -> "pandas.DataFrame":
        """A pandas.DataFrame with mean, sd, HDI, mcse, ess and r_hat of every component, not rounded.

        Its print has all columns, to four digits, and of more than sixty rows the first and the last ten. Draws weigh
        equally, whatever their step sizes, see `average`, or by their `weights`; r_hat is of the draws as they are.
        Chains that diverged are left out, with a warning. With one chain r_hat is nan. After a call of `accuracy` its
        biases are columns too: `bias_step_mean`, `bias_minibatches_sd` and so on. Raises RecipeError for an unknown
        name, or where no chain is left.

        >>> Draws({"theta": torch.randn(2, 50)}, info={}).summary("theta").index.tolist()
        ['theta']
        """
        sound = self._chains_with_draws("summary")
        from .summary import Summary  # imports pandas

        table = Summary.of({name: self[name][sound] for name in self._names(var_names)}, self.weights_of(sound))
        if self._accuracy is not None:
            for column, biases in self._accuracy.columns().items():
                table[column] = [biases.get(name, np.nan) for name in table.index]
        return table

    def accuracy(
        self,
        *,
        of: Callable[..., Any] | None = None,
        chains: int | None = None,
        steps: int | None = None,
        progress: bool | None = None,
    ) -> Accuracy:
        """The errors of the mean and the sd of every coordinate of the target, and what to change: `print` it.

        `of`: a function of theta of one draw, a loss say, whose mean and sd are asked in place of the coordinates'.

        Monte Carlo: the standard error, sd sqrt(tau/number), from autocorrelation times. Bias of the step: chains at h,
        h/2 and h/4 from common starts and noise, extrapolated twice by the order p of the step for the target,

            b' = c (E_h - E_{h/2}),  b = E_h - E_{h/2} + c (E_{h/2} - E_{h/4}),  bias_h = b + (b - b')/(4^p - 1),

        with c = 2^p/(2^p - 1), whose error has the distance from b in it, over sqrt 3; on minibatches it is b', to
        leading order, without that distance. Bias of the noise of minibatches: pairs of chains with a batch each,
        beside a chain with both, in which the covariance V_g of the gradient is halved, to leading order in h V_g,

            bias = 2 (E_V - E_{V/2}).

        A bias is the law of the draws less the target's, with a standard error from the differences between pairs;
        sizes are in sd of the target, that of the draws less its bias. `chains`: the number of groups; `steps`: of each
        chain at h. By default as many in all as the run had, or 10,000 each, in groups of 20 autocorrelation times.
        `progress` shows a bar, by default where the run did; its steps grow in number until the groups have settled.
        Metropolised draws have no bias of the step. `summary` shows the biases from then on. Raises RecipeError for
        draws that were loaded or do not come from `sample`, and for runs with schedules, with adaptations that go on,
        and at temperature 0.

        `divergence`, where steps have a work W, of the law rho_h of the draws, all blocks, to leading order:

            KL(rho_h || exp(-H/T)) = (E[L] from rho_h - E[L] from exp(-H/T))/2,  L = -W/T + Var[W | start]/(2 T^2),

        over stretches backwards in time, doubled until they have forgotten their start.

        Sources: Talay & Tubaro 1990, for the extrapolation; Giles et al. 2020, for the two halves of a batch; Sivak,
        Chodera & Crooks 2013, for the work.

        >>> from samplers import SGLD, sample
        >>> bowl = lambda theta: (theta**2).sum()/2                                         # sd 1, at h 1/sqrt(1 - h/2)
        >>> draws = sample(SGLD, bowl, init=torch.zeros(1), steps=1000, step_size=0.4, progress=False)
        >>> figure = draws.accuracy().by_name()["theta[0]", "sd"]
        >>> round(figure.step, 1)
        0.1
        """
        if self._again is None:
            what = "these draws do not hold the run that made them: they were loaded, copied or put together"
            do = "Call samplers.sample again with the same arguments; with checkpoint=, it makes no step twice."
            raise RecipeError("draws, accuracy", what, do=do)
        do = "Compare with a run at half the step size, or accept and reject."
        refuse_weights(self._log_weights, "draws, accuracy", "biases are measured of equal ones", do)
        sound = self._chains_with_draws("accuracy")
        shown = self._again.shown if progress is None else progress
        accuracy = accuracy_of(self, sound, self._again, of=of, chains=chains, steps=steps, progress=shown)
        if of is None:  # the summary is of coordinates
            self._accuracy = accuracy
        return accuracy

    def report(
        self,
        *,
        of: Callable[..., Any] | None = None,
        alpha: float = ALPHA,
        tolerance: float = TOLERANCE,
        evaluations: int | None = None,
    ) -> Report:
        """The faults of these draws, what to change first at the beginning: `print` it; true if there are none.

        Each finding is a number with its error, the band it should be in, and a cure. In the order of repair: lost
        chains; acceptance; proposals that diverge, by a work above 1000 T, not past an edge of the density, and where;
        the fraction of the spread of H that momenta cover, E-BFMI, of the worst chain; chains that stand still; the
        heat of the noise of minibatches, h V_g/(2 D) at a friction D, less what the recipe takes as supplied; R-hat of
        thermostats, which may still relax; R-hat; the configurational temperature, the mean of (theta - E theta) grad
        U; the kinetic temperature, of p^2/m, averaged over the run; the effective sample size.

        `of`: a function of theta of one draw, a loss say, whose R-hat and sample size are asked in place of the
        coordinates': it may mix where they do not, and the converse.
        `alpha`: the rate at which a right run has a finding out of its band by chance, shared by all questions.
        `tolerance`: the least error that matters, in standard deviations: 1/tolerance^2 is the least sample size, and a
        temperature may be 2 tolerance T off beside its error. `evaluations`: draws of each chain at which the gradient
        is taken, twice on minibatches; by default 100, or up to 5 % of the run's evaluations if those are more; with 0
        fewer questions are asked. Nothing is run again. The report names the questions that were not asked.

        A finding is not known, and the report's `ok` None, where half a temperature's band is above 0.3 T, and for an
        R-hat above 1.01 that chance leaves in so few draws of this autocorrelation. Others with an error say which
        errors may pass: those below one that is seen nine times of ten. Raises RecipeError for alpha outside of (0, 1),
        a tolerance that is not > 0, and evaluations that are no integer >= 0.

        Sources: Vehtari et al. 2021, R-hat and sample size; Leimkuhler & Matthews 2015, the temperatures; Betancourt
        2016, E-BFMI, with the limits of Stan.

        >>> from samplers import SGLD, sample
        >>> bowl = lambda theta: (theta**2).sum()/2
        >>> draws = sample(SGLD, bowl, init=torch.zeros(2), chains=50, steps=300, step_size=0.8, progress=False)
        >>> draws.report().verdict                                                          # doctest: +ELLIPSIS
        'Change first: configurational temperature of theta is 1..., above 1.... Take a smaller step size, ...'
        """
        number("draws, report", "alpha", alpha, above=0, below=1)
        number("draws, report", "tolerance", tolerance, above=0)
        if evaluations is not None:
            integer("draws, report", "evaluations", evaluations, least=0)
        sound = self._sound
        questioned = TargetDraws(
            {name: x[sound] if len(sound) < self.chains else x for name, x in self._targets().items()},
            self.info,
            lost=self.chains - len(sound),
            rerun=self._again,
            alpha=alpha,
            tolerance=tolerance,
            evaluations=evaluations,
            of=None if of is None else Functional(of, "draws, report", self.by_name),
            numbers=sound,
            weights=self.weights_of(sound),
        )
        report = report_of(questioned)
        if of is None:
            self._report = report
        return report

    def plot(self, var_names: str | Iterable[str] | None = None, max_components: int = 4) -> Any:
        """A matplotlib Figure, a row for each of the first `max_components` components of every name.

        Densities and effective sample sizes are by the weights of draws, all else is of the chains as they are.
        Columns: the trace of the chains, thinned to 2000 points a line; the marginal density of each; its
        autocorrelation, sum_t (x_t - m)(x_{t+k} - m)/sum_t (x_t - m)^2 over lags k in draws, with the band
        +-1.96/sqrt(draws) of white noise. Titles have the effective sample size and R-hat of all chains that did not
        diverge; of these the first 32 are drawn. Chains that diverged, the first 8, are dashed in the trace, whose
        limits are those of the others, and elsewhere left out. No window is opened: see `Figure.savefig`.

        Raises RecipeError without matplotlib, for an unknown name, and where there are no rows, or more than 50.

        >>> figure = Draws({"theta": torch.randn(4, 50, 2)}, info={}).plot()
        >>> [axes.get_title() for axes in figure.axes if axes.get_ylabel()]       # doctest: +ELLIPSIS
        ['theta[0]: ESS ..., R-hat ...', 'theta[1]: ESS ..., R-hat ...']
        """
        return plots.plot(self, self._names(var_names), self._title(), max_components)

    def _names(self, var_names: str | Iterable[str] | None) -> list[str]:
        if var_names is None:
            return list(self)
        return [var_names] if isinstance(var_names, str) else list(dict.fromkeys(var_names))

    def sound_chains(self, purpose: str) -> list[int]:
        """The chains that did not diverge, with a warning if `purpose` leaves out others.

        Raises RecipeError where every chain has diverged.

        >>> Draws({"theta": torch.zeros(3, 9)}, info={}).sound_chains("average")
        [0, 1, 2]
        """
        sound = self._sound
        if not sound:
            raise RecipeError(f"draws, {purpose}", "every chain has diverged", do="Sample with a smaller step size.")
        if len(sound) < self.chains:
            warn(f"{purpose} leaves out {self.chains - len(sound)} of {self.chains} chains, which diverged")
        return sound

    def _chains_with_draws(self, purpose: str) -> list[int]:
        """The chains that did not diverge; refused where there are no draws."""
        if not self.draws:
            raise RecipeError(f"draws, {purpose}", "there are no draws", do="Sample longer.")
        return self.sound_chains(purpose)

    @property
    def _sound(self) -> list[int]:
        return [chain for chain in range(self.chains) if chain not in self.diverged]

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file, whole or not at all; equal draws make equal files.

        Raises RecipeError for a name that ends as of another format, such as .npz, and with the system's reason when
        the file cannot be written.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Draws({"theta": torch.zeros(2, 9)}, info={"seed": 1}).save(folder + "/run.safetensors")
        ...     Draws.load(folder + "/run.safetensors").info
        {'seed': 1}
        """
        write_draws(Path(path), self)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Draws":
        """Read the file of `save`; nothing in it is executed.

        Raises RecipeError when the file is missing, truncated, corrupted or not a file of draws.
        """
        return read_draws(Path(path), cls)
