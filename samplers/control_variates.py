"""Minibatch gradients of less variance: control variates at a fixed point, and at a snapshot of a training loop (SVRG)."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager

import torch
from torch.func import functional_call, grad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from recipe.errors import RecipeError

from .gradients import Data, Layout, check_energy
from .minibatches import Minibatches, Source

PROBED = 64  # rows on which a loss is seen to be a mean
OTHER = 0.1  # relative distance from which on two gradients are not the same up to rounding and mixed precision


# ---- at a fixed point


def control_variate(energy: Callable, center, data, *, chunk: int = 4096) -> Callable:
    """The energy U~(theta, batch) with a control variate at `center`, for `samplers.sample` with the same data.

    U~(theta; B) + <grad U(c) - grad U~(c; B), theta - c>, whose gradient g~(theta) - g~(c) + g(c) is as unbiased as that
    of U~, and has no variance at theta = c: take the mode, as from `find_mode`. The gradient costs two of U~. A budget for
    the noise of plain minibatches, `B` or `V` of a sampler, is too large for it.

    `energy`: U~(theta, batch) on the sum scale, as from `posterior`. `center`: one chain's target, a tensor `(*shape)`, a
    dict of tensors by name or an nn.Module. `data`: a tensor or a tuple of tensors, of which grad U(c) is summed once,
    `chunk` rows at a time. Raises RecipeError for what `sample` refuses, for an energy that is no mean over the batch
    times a constant, plus a constant, and for a gradient at the center that is not finite.
    Sources: Baker, Fearnhead, Fox & Nemeth 2019 (SGLD-CV); Dubey et al. 2016.

    >>> from samplers import posterior
    >>> x = torch.tensor([1.0, 2.0, 6.0])
    >>> energy = posterior(lambda theta, x: (x - theta)**2/2, lambda theta: 0*theta, num_data=3)
    >>> better = control_variate(energy, torch.tensor(3.0), x)
    >>> [float(grad(better)(torch.tensor(4.0), batch)) for batch in (x[:1], x[1:])]        # 3 (theta - mean x), both
    [3.0, 3.0]
    """
    where = "control_variate"
    at = _point(f"{where}, center", center)
    data = _checked(where, energy, at, data, chunk)
    _check_scale(where, energy, at, data, chunk)
    slope = grad(lambda point, batch: energy(_as_given(point), batch))
    full = {name: torch.zeros_like(x) for name, x in at.items()}
    for share, batch in _chunks(data.batch, data.rows, chunk):
        for name, g in slope(at, batch).items():
            full[name] += share * g
    if not all(g.isfinite().all() for g in full.values()):
        raise RecipeError(f"{where}, center", "the gradient is not finite there", do="Choose another center.")

    def corrected(theta, batch):
        point = dict(theta) if isinstance(theta, Mapping) else {None: theta}
        kinds = [{name: tuple(x.shape) for name, x in tensors.items()} for tensors in (at, point)]
        if kinds[0] != kinds[1]:
            raise RecipeError(f"{where}, center", f"it has the shape {_told(kinds[0])}, theta {_told(kinds[1])}",
                              do="Give one chain's target, as `init` does.")
        here = slope(at, batch)
        return energy(theta, batch) + sum(((full[name] - here[name]) * (point[name] - x)).sum() for name, x in at.items())

    corrected.num_data = data.rows
    return corrected


def find_mode(energy: Callable, init, data=None, *, steps: int = 500, chunk: int = 4096):
    """A point where U is least, by L-BFGS with full gradients from `init`: a tensor, or a dict of tensors by name.

    `energy`, `init` and `data` are as for `control_variate`, or an energy U(theta) without data. It stops where U moves by
    less than 1e-9, at a local minimum, and warns if it has not within `steps` iterations. Raises RecipeError where it
    ends at numbers that are not finite. Source: Liu & Nocedal 1989.

    >>> find_mode(lambda theta: ((theta - 3)**2).sum(), torch.zeros(2))
    tensor([3., 3.])
    """
    where = "find_mode"
    at = _point(f"{where}, init", init)
    _check_int(f"{where}, steps", steps, 1)
    data = _checked(where, energy, at, data, chunk)
    if data is not None and data.rows > chunk:
        _check_scale(where, energy, at, data, chunk)
    at = {name: x.clone().requires_grad_() for name, x in at.items()}
    optimizer = torch.optim.LBFGS(at.values(), max_iter=steps, max_eval=10 * steps, history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        parts = []
        for share, *batch in [(1.0,)] if data is None else _chunks(data.batch, data.rows, chunk):
            parts.append(share * energy(_as_given(at), *batch))
            parts[-1].backward()
        return sum(part.detach() for part in parts)

    with torch.enable_grad():
        optimizer.step(closure)
        value = closure()  # step returns that of the start
    found = {name: x.detach() for name, x in at.items()}
    if not value.isfinite() or not all(x.isfinite().all() for x in found.values()):
        raise RecipeError(where, "it ended at numbers that are not finite", do="Start elsewhere, or mend the energy.")
    if optimizer.state[next(iter(at.values()))]["n_iter"] >= steps:
        warnings.warn(f"{where}: U still falls after {steps} iterations. Take more steps; or take the point as a center, which need not "
                      "be the mode.", RuntimeWarning, stacklevel=2)
    return _as_given(found)


# ---- at a snapshot


class SVRG:
    """Less variance in the gradients of a training loop: every `every` steps a snapshot of the weights and its full gradient.

    After `loss.backward()`, `correct(batch)` makes of p.grad g~(theta) - g~(s) + g(s), where s is the snapshot and g~(s)
    the gradient of the same batch there. It is as unbiased, without variance while theta = s, and costs one gradient more,
    and at a snapshot one of all data.

    `model`: an nn.Module, or its weights in a list or a dict by name. `loss(model, batch)`: the mean over the batch, in the
    form of `model`; the modules are called with the snapshot in them (torch.func.functional_call) and copies of their
    buffers, so both stay as they are. `data`: all data, as for `Minibatches`, or `Minibatches` of them, read `chunk` rows at
    a time, without random augmentation. Correct gradients before they are clipped or averaged over ranks, and after they
    are unscaled. Raises RecipeError for dropout and batch normalisation in training mode, with which the loss at s is
    random or no mean, and for a loss that is not the one whose gradient is in p.grad.
    Sources: Johnson & Zhang 2013; Dubey et al. 2016 (SVRG-LD).

    >>> X, model = torch.linspace(0, 1, 8)[:, None], torch.nn.Linear(1, 1)
    >>> loss = lambda model, x: (model(x) - x**2).square().mean()
    >>> svrg = SVRG(model, loss, X, every=100)
    >>> loss(model, X[:2]).backward()
    >>> svrg.correct(X[:2])
    >>> at_snapshot = model.weight.grad.clone()
    >>> model.zero_grad()
    >>> loss(model, X).backward()
    >>> torch.allclose(at_snapshot, model.weight.grad)
    True
    """

    def __init__(self, model, loss: Callable, data, *, every: int, chunk: int = 1024):
        self.model, self.loss, self.every, self.chunk, self.steps = model, loss, every, chunk, 0
        if not callable(loss):
            raise RecipeError("SVRG, loss", f"it is a function of (model, batch), got {loss!r}", do="Pass the loss of the training loop.")
        self.source = data.source if isinstance(data, Minibatches) else Source(data, "SVRG")
        for name in ("every", "chunk"):
            _check_int(f"SVRG, {name}", getattr(self, name), 1)
        if isinstance(model, torch.nn.Module):
            named, self._module = model.named_parameters(), _Loss(model, loss)
        else:
            self._module = None
            if torch.is_tensor(model) or not isinstance(model, (Mapping, Iterable)):
                raise RecipeError("SVRG, model", f"got a {type(model).__name__}", do="Pass an nn.Module, or a list or dict of weights.")
            if not isinstance(model, Mapping):
                self.model = list(model)
            named = model.items() if isinstance(model, Mapping) else enumerate(self.model)
        weights = {str(name): p for name, p in named}
        if not all(torch.is_tensor(p) for p in weights.values()):
            raise RecipeError("SVRG, model", "a weight is no tensor", do="Pass an nn.Module, or a list or dict of weights.")
        self.weights = {name: p for name, p in weights.items() if p.requires_grad}
        self._fixed = {name: p for name, p in weights.items() if not p.requires_grad}
        if not self.weights:
            raise RecipeError("SVRG, model", "no weight requires a gradient", do="Pass the weights that are trained.")
        self._snapshot: dict[str, torch.Tensor] = {}
        self._full: dict[str, torch.Tensor] = {}
        self._check_modules()

    def correct(self, batch) -> None:
        """Correct the gradient of this batch in p.grad, at a snapshot of the weights that is taken now if it is time.

        Raises RecipeError, and leaves p.grad as it was, where a weight has none.
        """
        self._check_modules()
        for name, p in self.weights.items():
            if p.grad is None or p.grad.layout is not torch.strided:
                raise RecipeError("SVRG, correct", f"the weight {name} has {'no' if p.grad is None else 'a sparse'} gradient",
                                  do="Call loss.backward() first, and pass the weights that the loss uses, with dense gradients.")
        if self.steps % self.every == 0:
            self._take_snapshot()
        slopes = self._gradient(self._snapshot, batch)
        if self.steps == 0:
            self._compare(slopes)
        with torch.no_grad():
            for name, p in self.weights.items():
                p.grad.add_(self._full[name] - slopes[name])
        self.steps += 1

    def state_dict(self) -> dict:
        """The number of steps, the snapshot and its full gradient by name; copies."""
        copy = lambda tensors: {name: x.clone() for name, x in tensors.items()}
        return {"steps": self.steps, "every": self.every, "snapshot": copy(self._snapshot), "gradient": copy(self._full)}

    def load_state_dict(self, state: Mapping) -> None:
        """Go on from what `state_dict` gave, bit for bit. Raises RecipeError if it is of other weights or another `every`."""
        where, shapes = "SVRG, load_state_dict", {name: tuple(p.shape) for name, p in self.weights.items()}
        if not isinstance(state, Mapping) or set(state) != {"steps", "every", "snapshot", "gradient"}:
            raise RecipeError(where, "it is no state of an SVRG", do="Pass what state_dict() returned.")
        if state["every"] != self.every:
            raise RecipeError(where, f"it is the state of every = {state['every']}, here it is {self.every}", do="Make the same one.")
        for tensors in (state["snapshot"], state["gradient"]):
            found = {name: tuple(x.shape) for name, x in tensors.items()}
            if found != shapes and (found or state["steps"]):
                raise RecipeError(where, f"it is the state of the weights {found}, here they are {shapes}", do="Make the same model.")
        self.steps = state["steps"]
        self._snapshot, self._full = ({name: x.to(self.weights[name], copy=True) for name, x in state[part].items()}
                                      for part in ("snapshot", "gradient"))

    def _take_snapshot(self):
        snapshot = {name: p.detach().clone() for name, p in self.weights.items()}
        if self.steps == 0:
            with torch.no_grad():
                _check_mean("SVRG, loss", lambda batch: self._value(snapshot, batch), self.source.take, self.source.num_data, self.chunk,
                            "the mean over the batch")
        full = {name: torch.zeros_like(x) for name, x in snapshot.items()}
        for share, batch in _chunks(self.source.take, self.source.num_data, self.chunk):
            for name, g in self._gradient(snapshot, batch).items():
                full[name] += share * g
        self._snapshot, self._full = snapshot, full

    def _value(self, at, batch):
        """The loss of a batch at these weights."""
        if self._module is not None:
            buffers = {name: b.clone() for name, b in self._module.named_buffers()}
            value = functional_call(self._module, {f"model.{name}": x for name, x in at.items()} | buffers, (batch,))
        else:
            at = self._fixed | at
            value = self.loss({name: at[str(name)] for name in self.model} if isinstance(self.model, Mapping) else
                              [at[str(i)] for i in range(len(self.model))], batch)
        if not torch.is_tensor(value) or value.dim():
            got = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"a {type(value).__name__}"
            raise RecipeError("SVRG, loss", f"it returns {got}", do="Return the mean over the batch, a 0-dim tensor.")
        return value

    def _gradient(self, at, batch):
        with torch.enable_grad():
            at = {name: x.detach().requires_grad_() for name, x in at.items()}
            value = self._value(at, batch)
            if not value.requires_grad:
                raise RecipeError("SVRG, loss", "it does not depend on the model that it is given", do="Compute it from its arguments.")
            return dict(zip(at, torch.autograd.grad(value, list(at.values()), materialize_grads=True)))

    def _compare(self, slopes):
        """Refuse, while theta is the snapshot, a loss of another gradient than p.grad."""
        norm = lambda tensors: float(torch.stack([x.norm() for x in tensors]).norm())
        mine, theirs = slopes.values(), [p.grad for p in self.weights.values()]
        apart, size = norm([a - b for a, b in zip(mine, theirs)]), max(norm(mine), norm(theirs))
        if apart > OTHER * size:
            raise RecipeError("SVRG, correct", f"p.grad differs from the gradient of the loss on this batch by {apart:.2g} of {size:.2g}",
                              do="Pass the loss of backward(), without randomness, and zero the gradients before it.")

    def _check_modules(self):
        """Refuse modules that make the loss at the snapshot random, or couple the examples of a batch."""
        for name, module in self.model.named_modules() if self._module is not None else ():
            told, do = "", "Call eval() on it: gradients stay on."
            rate = getattr(module, "p", 1.0) if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                told, do = "averages gradients over ranks before they are corrected", "Pass the module in it, and average after correct()."
            elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                told = "couples the examples of a batch"
                do = do if module.running_mean is not None else "Give it running statistics, and call eval() on it."
            elif module.training and (isinstance(module, torch.nn.RReLU) or isinstance(rate, (int, float)) and rate > 0):
                told = "is random in training mode"
            if told:
                raise RecipeError("SVRG, model", f"{name or 'it'}, a {type(module).__name__}, {told}", do=do)


class _Loss(torch.nn.Module):
    """The loss as a module, in which functional_call can put other weights into the model."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch):
        return self.loss(self.model, batch)


# ---- what both share


def _point(where, given) -> dict:
    """A point as tensors by name, copied; the name of a lone tensor is None."""
    given = dict(given.named_parameters()) if isinstance(given, torch.nn.Module) else given
    tensors = dict(given) if isinstance(given, Mapping) else {None: given}
    for x in tensors.values():
        if not torch.is_tensor(x) or not x.is_floating_point() or not x.isfinite().all():
            raise RecipeError(where, "it is no tensor of finite real numbers, or a dict of such", do="Pass one chain's target.")
    if not tensors:
        raise RecipeError(where, "there are no tensors in it", do="Pass one chain's target.")
    return {name: x.detach().clone() for name, x in tensors.items()}


def _as_given(point):
    return point[None] if None in point else point


def _told(shapes):
    return shapes.get(None, shapes)


def _checked(where, energy, point, data, chunk) -> Data | None:
    """The data, and an energy that `sample` could take with them."""
    _check_int(f"{where}, chunk", chunk, 1)
    with _named(where):
        if data is not None:
            data = Data(data, None, like=next(iter(point.values())))
            data.batch_size = min(chunk, data.rows)
        check_energy(energy, _as_given(point), Layout(), data)
    return data


@contextmanager
def _named(where):
    """Speak in the name of this function where `sample` would refuse the same."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(error.where.replace("sample", where, 1), error.what, do=error.do) from error.__cause__


def _chunks(take, rows, size):
    """All data, some rows at a time, each with its share of them."""
    for some in torch.arange(rows).split(size):
        yield len(some) / rows, take(some)


def _check_scale(where, energy, at, data, chunk):
    value = lambda batch: energy(_as_given(at), batch)
    _check_mean(f"{where}, energy", value, data.batch, data.rows, chunk, "num_data times the mean over the batch, plus the prior")


def _check_mean(where, value, take, rows, size, wanted):
    """Refuse what is not affine in the mean over the batch: on two halves of some rows it must average to the whole."""
    some = torch.arange(min(rows, size, PROBED))
    if len(some) < 2:
        return
    whole, *halves = [(len(part) / len(some), float(value(take(part)))) for part in (some, *some.tensor_split(2))]
    apart = abs(whole[1] - sum(share * half for share, half in halves))
    if apart > 0.01 * max(abs(whole[1]), *(abs(half) for _, half in halves)):
        told = f"on {len(some)} rows it is {whole[1]:.6g}, on the halves of them {halves[0][1]:.6g} and {halves[1][1]:.6g}"
        raise RecipeError(where, told, do=f"Return {wanted}, nothing that couples rows or is random.")


def _check_int(where, value, least):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RecipeError(where, f"got {value!r}", do=f"Choose an integer >= {least}.")
