"""Predictions of draws, some rows of the data at a time, and posterior predictives: running means over the draws."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.func import functional_call

from recipe.arguments import integer, number
from recipe.errors import RecipeError, of_the_caller

from .tensor_checks import STATE, check_tensors, checked, distributions, expanded, noise_variances, tensor_of

WHERE = "draws, predict"
FUNCTION = "Pass a function f(theta, rows) of one draw and of rows of X, or the nn.Module that the run began with."


class _Means:
    """Weighted running means of tensors over draws, with the number of draws and their total weight."""

    _names: tuple[str, ...] = ()  # the first has the shape of a draw

    def __init__(self) -> None:
        self.draws = 0
        self._weight = 0.0
        self._means = dict.fromkeys(self._names, torch.zeros((), dtype=torch.float64, device="cpu"))

    def __repr__(self) -> str:
        shape = f" for {' x '.join(map(str, self._shape))}" if self.draws else ""
        return f"{type(self).__name__} of {self.draws} draws{shape}"

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._means[self._names[0]].shape)

    def state_dict(self) -> dict[str, Any]:
        """The state to save: `draws`, `weight` and the means by name, copies in float64."""
        return {"draws": self.draws, "weight": self._weight, **{name: x.clone() for name, x in self._means.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit. Raises RecipeError for the state of something else."""
        where = self._where("load_state_dict")
        if set(state) != {"draws", "weight", *self._names}:
            raise RecipeError(where, f"the state has the entries {sorted(state)}", do=STATE)
        check_tensors(where, (state[name] for name in self._names))
        draws = integer(where, "draws", state["draws"], least=0, most=2**63 - 1)
        self._weight = float(number(where, "weight", state["weight"], least=0))
        self._means = {name: state[name].to(torch.float64, copy=True) for name in self._names}
        self.draws = draws

    def _where(self, method: str) -> str:
        return f"{type(self).__name__}, {method}"

    def _mean(self, name: str) -> torch.Tensor:
        if not self.draws:
            raise RecipeError(type(self).__name__, "there are no draws yet", do="Call add first.")
        return self._means[name].clone()

    def _weights(self, method: str, weight: Any, draws: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The weights, with sum 1, of draws `(..., data, columns)`, and their sum; checks the shapes of both."""
        where = self._where(method)
        leading, shape = draws.shape[:-2], tuple(draws.shape[-2:])
        if self.draws and shape != self._shape:
            what = f"the draw has the shape {shape}, those before it {self._shape}"
            raise RecipeError(where, what, do="Predict the same data with every draw.")
        w = tensor_of(where, "the weights", weight).to(draws.device, torch.float64)
        w = expanded(where, "weights", w, leading, "draw").reshape(-1)
        total = float(w.sum())
        if not (w > 0).all() or total == float("inf"):
            raise RecipeError(where, "a weight is not a number > 0", do="Pass step sizes, or none.")
        return w / total, total

    def _add(self, draws: int, total: float, means: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
        """Move each mean to that of all draws; returns the share of the new ones, and their differences, by name."""
        share = total / (self._weight + total)
        # Means rather than sums: equal draws stay what they are, to the last bit.
        gaps = {name: new - self._means[name].to(new.device) for name, new in means.items()}
        self._means = {name: self._means[name].to(gap.device) + share * gap for name, gap in gaps.items()}
        self.draws += draws
        self._weight += total
        return share, gaps


class Predictive(_Means):
    """The posterior predictive of a classifier, from the logits of one draw after another; no draw is kept.

    That of a regression is `PredictiveMoments`.
    p = sum_k w_k softmax(logits_k) / sum_k w_k, whose entropy H[p] is the mean entropy of the draws plus the mutual
    information of label and parameters. Sums are in float64, on the device of the logits.
    Sources: Welling & Teh 2011 (weights); Houlsby, Huszar, Ghahramani & Lengyel 2011, eq. (2), and Depeweg,
    Hernandez-Lobato, Doshi-Velez & Udluft 2018 (entropies).

    >>> predictive = Predictive()
    >>> for logits in torch.tensor([[[0.0, 0.0], [50.0, 0.0]], [[0.0, 0.0], [0.0, 50.0]]]):
    ...     predictive.add(logits)
    >>> predictive
    Predictive of 2 draws for 2 x 2
    >>> predictive.probabilities
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    >>> predictive.mutual_information                  # the draws agree on the first datum, not on the second
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """

    _names = ("probabilities", "expected_entropy")

    def add(self, logits: Any, *, weight: Any = 1.0) -> None:
        """Add the logits `(data, classes)` of a draw, or `(..., data, classes)` of several.

        `weight`, such as the step size, is a number > 0, or one per draw: it broadcasts to `(...)`. Raises RecipeError,
        and changes nothing, for another shape than before, one class, logits or weights that are not finite.

        >>> predictive = Predictive()
        >>> predictive.add(torch.randn(4, 100, 20, 3), weight=torch.linspace(0.2, 0.1, 100))   # chains, draws
        >>> predictive.draws, predictive.probabilities.shape
        (400, torch.Size([20, 3]))
        """
        z = checked(self._where("add"), "logits", logits, last="classes")
        self._take("add", z.to(torch.float64).softmax(-1), weight)

    def add_probabilities(self, probabilities: Any, *, weight: Any = 1.0) -> None:
        """Like `add`, of probabilities `(..., data, classes)`; RecipeError also where they do not sum to 1."""
        self._take("add_probabilities", distributions(self._where("add_probabilities"), probabilities), weight)

    def _take(self, method: str, p: torch.Tensor, weight: Any) -> None:
        w, total = self._weights(method, weight, p)
        p = p.reshape(-1, *p.shape[-2:])
        means = {"probabilities": torch.tensordot(w, p, 1), "expected_entropy": torch.tensordot(w, _entropy(p), 1)}
        self._add(len(p), total, means)

    @property
    def probabilities(self) -> torch.Tensor:
        """The mean of the probabilities of the draws, `(data, classes)` in float64."""
        return self._mean("probabilities").clamp(max=1)  # rounding

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy H[p] of the mean probabilities p in nats, `(data,)`: all uncertainty of the label."""
        return _entropy(self.probabilities)

    @property
    def expected_entropy(self) -> torch.Tensor:
        """The mean over draws of the entropy of their probabilities, `(data,)`: the noise of the label (aleatoric)."""
        return self._mean("expected_entropy")

    @property
    def mutual_information(self) -> torch.Tensor:
        """H[p] less the expected entropy, `(data,)`: the disagreement of the draws (epistemic), never below 0."""
        return (self.entropy - self.expected_entropy).clamp(min=0)


class PredictiveMoments(_Means):
    """The mean and variance of a regression's posterior predictive, from one draw after another; no draw is kept.

    Var[y] = E[noise variance] + Var[f], the law of total variance, where Var[f] is the mean square deviation and the
    weights are those of `Predictive`. Sums are in float64, on the device of the predictions.
    Sources: Chan, Golub & LeVeque 1979 (updates); Depeweg et al. 2018 (the two parts).

    >>> moments = PredictiveMoments()
    >>> for f in (torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [2.0]])):
    ...     moments.add(f, noise_variance=0.5)
    >>> moments.mean.T, moments.variance.T
    (tensor([[2., 2.]], dtype=torch.float64), tensor([[1.5000, 0.5000]], dtype=torch.float64))
    """

    _names = ("mean", "variance_of_mean", "expected_variance")

    def add(self, predictions: Any, *, noise_variance: Any = 0.0, weight: Any = 1.0) -> None:
        """Add the predictions `(data, outputs)` of a draw, or `(..., data, outputs)` of several.

        `noise_variance` >= 0 broadcasts to the predictions, `weight` > 0 to `(...)`. Raises RecipeError, and changes
        nothing, for another shape than before, and for numbers that are not finite.
        """
        where = self._where("add")
        f = checked(where, "predictions", predictions, last="outputs").to(torch.float64)
        w, total = self._weights("add", weight, f)
        noise = noise_variances(where, noise_variance, f)
        f, noise = (x.reshape(-1, *f.shape[-2:]) for x in (f, noise))
        mean = torch.tensordot(w, f, 1)
        # Around the means: a mean of squares less the square of the mean would cancel far from 0.
        means = {
            "mean": mean,
            "variance_of_mean": torch.tensordot(w, (f - mean) ** 2, 1),
            "expected_variance": torch.tensordot(w, noise, 1),
        }
        share, gaps = self._add(len(f), total, means)
        self._means["variance_of_mean"] += share * (1 - share) * gaps["mean"] ** 2

    @property
    def mean(self) -> torch.Tensor:
        """The mean of the predictions, `(data, outputs)` in float64."""
        return self._mean("mean")

    @property
    def variance(self) -> torch.Tensor:
        """The variance of an observation, `(data, outputs)`: the sum of the two below."""
        return self.expected_variance + self.variance_of_mean

    @property
    def expected_variance(self) -> torch.Tensor:
        """The mean over draws of the noise variance, `(data, outputs)` (aleatoric)."""
        return self._mean("expected_variance")

    @property
    def variance_of_mean(self) -> torch.Tensor:
        """The variance over draws of the prediction, `(data, outputs)` (epistemic), never below 0."""
        return self._mean("variance_of_mean")


def _entropy(p: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(p).sum(-1)


# ---- predictions of each draw


@torch.no_grad()
def predictions_of(
    draws: Mapping[str, torch.Tensor], model: Callable, X: Any, *, batch_size: int | None, thin: int, by_name: bool
) -> torch.Tensor:
    """The predictions of a model for the rows of X at every `thin`-th draw. `Draws.predict` says more.

    `by_name`: whether theta is a dict.
    """
    integer(WHERE, "thin", thin, least=1)
    parts = _parts(X, batch_size)
    thinned = {name: x[:, ::thin] for name, x in draws.items()}
    chains, number = next(iter(thinned.values())).shape[:2]
    function = _of_module(model, thinned) if isinstance(model, torch.nn.Module) else model
    if not callable(function):
        raise RecipeError(WHERE, f"the model is {model!r}", do=FUNCTION)
    result: torch.Tensor | None = None
    for chain in range(chains):
        for draw in range(number):
            values = {name: x[chain, draw] for name, x in thinned.items()}
            theta = values if function is not model or by_name else next(iter(values.values()))
            predictions = torch.cat([_predictions(function, theta, rows) for rows in parts])
            if result is None:
                result = predictions.new_empty((chains, number, *predictions.shape))
            result[chain, draw] = predictions
    if result is None:
        raise RecipeError(WHERE, "there are no draws", do="Sample longer.")
    return result


def _parts(X: Any, batch_size: int | None) -> list[Any]:
    """X, so many rows at a time, in its form."""
    tensors = X if isinstance(X, tuple) else (X,)
    if not tensors or not all(torch.is_tensor(x) and x.dim() for x in tensors):
        raise RecipeError(WHERE, f"X is a {type(X).__name__}", do="Pass a tensor, or a tuple of tensors, of rows.")
    if len({len(x) for x in tensors}) > 1 or not len(tensors[0]):
        raise RecipeError(WHERE, f"X has {[len(x) for x in tensors]} rows", do="Pass tensors of the same rows.")
    size = len(tensors[0]) if batch_size is None else integer(WHERE, "batch_size", batch_size, least=1)
    return list(zip(*(x.split(size) for x in tensors))) if isinstance(X, tuple) else list(X.split(size))


def _of_module(module: torch.nn.Module, draws: Mapping[str, torch.Tensor]) -> Callable:
    """A module as a function of its parameters and of rows, in eval mode."""
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    if names != set(draws):
        what = f"the module has the parameters {sorted(names)}, the draws are of {sorted(draws)}"
        raise RecipeError(WHERE, what, do="Pass the module that the run began with, or a function of theta and rows.")

    def function(theta: dict[str, torch.Tensor], rows: Any) -> Any:
        was_training = module.training
        module.eval()
        try:
            return functional_call(module, theta, rows if isinstance(rows, tuple) else (rows,))
        finally:
            module.train(was_training)

    return function


def _predictions(function: Callable, theta: Any, rows: Any) -> torch.Tensor:
    """The predictions of a model for some rows; refused where there is not one for each row."""
    number = len(rows[0] if isinstance(rows, tuple) else rows)
    with of_the_caller(WHERE, "the model fails, called with theta and rows", FUNCTION, (torch.OutOfMemoryError,)):
        predictions = function(theta, rows)
    is_tensor = torch.is_tensor(predictions)
    if not is_tensor or not predictions.dim() or len(predictions) != number:
        got = f"the shape {tuple(predictions.shape)}" if is_tensor else f"a {type(predictions).__name__}"
        raise RecipeError(WHERE, f"the model gives {got} for {number} rows", do="Return one prediction per row.")
    return predictions
