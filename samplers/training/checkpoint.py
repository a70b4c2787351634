"""Checkpoints of a run: two files in a folder, of which one is always whole, and the state of a training loop in them."""

import json
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from copy import deepcopy

import torch
import torch.distributed as dist

from recipe.errors import RecipeError

from ..files import storage
from ..files.pair import Pair


class Checkpoint:
    """A training loop that goes on where it was killed: the states of its parts, saved whole or not at all.

    `parts` are what has `state_dict()` and `load_state_dict()`, by names of your choice: the model, the optimizer, schedulers, a GradScaler,
    Minibatches, Predictive, SVRG; and torch.Generators. Torch's own generators, which dropout draws from, go along; those of numpy
    and Python do not. `settings`, plain data, must be the same for a run to go on. The two latest are kept in `folder`, tensors as
    safetensors, all else as JSON, with a SHA-256 of both; nothing in them is executed. Under torchrun rank 0 saves for all, whose
    weights are the same, and all ranks load what it has saved, but for torch's own generators. Raises RecipeError for the folder of
    another run, before anything is overwritten.

    >>> import tempfile
    >>> checkpoint = Checkpoint(tempfile.mkdtemp(), model=torch.nn.Linear(2, 1))
    >>> first = checkpoint.load().get("epoch", 0)
    >>> for epoch in range(first, 2):
    ...     checkpoint.save(epoch=epoch + 1)
    >>> checkpoint.load()
    {'epoch': 2}
    """

    def __init__(self, folder, /, *, every: float = 0.0, settings: Mapping | None = None, **parts):
        self.where = f"Checkpoint in {folder}"
        if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 <= every < math.inf:
            raise RecipeError(
                self.where, f"every = {every!r}", do="Give the least number of seconds from one to the next."
            )
        try:
            self.settings = json.loads(json.dumps(dict(settings or {})))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecipeError(
                f"{self.where}, settings", str(error), do="Give a dict of numbers, strings and lists."
            ) from error
        self.parts, self.every, self.saved = {**parts, "torch's generators": _Generators()}, every, -math.inf
        for name, part in parts.items():
            if isinstance(part, type) or not (
                isinstance(part, torch.Generator)
                or callable(getattr(part, "state_dict", None))
                and callable(getattr(part, "load_state_dict", None))
            ):
                raise RecipeError(
                    self.where,
                    f"{name}, a {type(part).__name__}, has no state_dict and load_state_dict",
                    do="Leave it out; for a DataLoader pass the Minibatches that order it, see Minibatches.as_sampler.",
                )
        if not parts:
            raise RecipeError(self.where, "there is nothing to save", do="Pass model=..., optimizer=...")
        self.pair = Pair(folder, "training loop")
        storage.make_folder(self.pair.folder)

    def load(self) -> dict:
        """Put all parts where the run before this one has left them; what `save` was told then, {} in a new folder.

        Where it raises RecipeError the parts are as they were.
        """
        if dist.is_initialized():
            dist.barrier()
        found = self.pair.newest(self.settings)
        if dist.is_initialized():
            dist.barrier()
        told: dict = {}
        if found is not None:
            states, told = _parts_of(self.pair.folder, *found)
            self._take_up(states)
        self.pair.accept()
        return told

    def _take_up(self, states):
        if states.keys() != self.parts.keys():
            raise RecipeError(
                self.where,
                f"it holds the states of {', '.join(states)}, here are {', '.join(self.parts)}",
                do="Pass the same parts.",
            )
        before = {name: deepcopy(_state_of(part)) for name, part in self.parts.items()}
        for k, (name, part) in enumerate(self.parts.items()):
            try:
                _put(part, states[name])
            except Exception as error:  # of the part's own code
                for done in list(self.parts)[: k + 1]:
                    _put(self.parts[done], before[done])
                raise RecipeError(
                    f"{self.where}, {name}",
                    f"the state does not fit ({str(error).strip()})",
                    do="Make the same parts, without wrappers such as torch.compile.",
                ) from error

    def save(self, *, now: bool = False, **told) -> None:
        """Write the states of all parts, and plain data for `load` to return, unless that was done `every` seconds ago; `now` in any case."""
        if not isinstance(now, bool):
            raise RecipeError(
                self.where, f"now = {now!r}", do="Pass now=True to save in any case; tell `load` by another name."
            )
        if _rank() or not now and time.monotonic() - self.saved < self.every:
            return
        if self.pair.generation == 0 and any(path.exists() for path in self.pair.files):
            raise RecipeError(
                self.where,
                "it holds a run that has not been loaded",
                do="Call load() before the loop, or choose another folder.",
            )
        tensors: dict = {}
        try:
            states = _split({name: _state_of(part) for name, part in self.parts.items()}, "states", tensors)
            self.pair.write(tensors, self.settings, {"states": states, "told": _split(told, "told", tensors)})
        except RecipeError:
            raise
        except (KeyError, ValueError, RuntimeError, RecursionError, NotImplementedError) as error:
            raise RecipeError(
                self.where,
                f"there is something in the states that cannot be written ({error})",
                do="Keep dense tensors of numbers, and plain data.",
            ) from error
        self.saved = time.monotonic()


def read(folder) -> tuple[dict, dict]:
    """The states of the parts of a training loop by name, and what `save` was told, without a loop to put them in."""
    pair = Pair(folder, "training loop")
    found = pair.newest()
    if found is None:
        raise RecipeError(str(pair.folder), "there is no checkpoint", do="Pass the folder of a Checkpoint.")
    return _parts_of(pair.folder, *found)


def _parts_of(folder, tensors, account):
    """The states of the parts by name, and what `save` was told."""
    try:
        states, told = (_joined(account[part], tensors) for part in ("states", "told"))
        if not isinstance(states, dict) or not isinstance(told, dict):
            raise TypeError("these are no dicts")
        return states, told
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise RecipeError(
            str(folder), "it holds no checkpoint of a training loop", do="Choose another folder."
        ) from error


class _Generators:
    """Torch's own generators, those of rank 0, as a part."""

    def state_dict(self):
        on_gpus = enumerate(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        return {"cpu": torch.get_rng_state(), **dict(on_gpus)}

    def load_state_dict(self, state):
        for device, x in state.items() if _rank() == 0 else ():
            if device == "cpu":
                torch.set_rng_state(x)
            elif device < torch.cuda.device_count():
                torch.cuda.set_rng_state(x, device)


def _state_of(part):
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def _put(part, state):
    part.set_state(state) if isinstance(part, torch.Generator) else part.load_state_dict(state)


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


PLAIN = {"dict": dict, "Counter": Counter, "list": list, "tuple": tuple}


def _split(x, path, tensors):
    """Plain data that JSON can hold, with the names of the tensors that are put aside; keys need be no strings."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if torch.is_tensor(x) and x.layout is torch.strided and tensors is not None:
        while path in tensors:
            path += "'"
        tensors[path] = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        return {"complex" if x.is_complex() else "tensor": path}
    inside = lambda key, value: _split(value, f"{path}.{key}", tensors)
    if isinstance(x, Mapping):
        pairs = [[_split(key, path, None), inside(key, value)] for key, value in x.items()]
        if hasattr(x, "_metadata"):  # of a module: the versions of the states of its parts
            return {"module": [pairs, _split(x._metadata, f"{path}._metadata", tensors)]}
        return {"Counter" if isinstance(x, Counter) else "dict": pairs}
    if isinstance(x, (list, tuple)):
        return {"tuple" if isinstance(x, tuple) else "list": [inside(k, value) for k, value in enumerate(x)]}
    raise RecipeError(
        f"Checkpoint, {path.split('.', 1)[1]}",
        f"a {type(x).__name__} cannot be saved",
        do="Keep dense tensors, numbers (of numpy by .item()), strings, lists and dicts of them; functions are not written, nor read.",
    )


def _joined(x, tensors):
    """What `_split` took apart."""
    if not isinstance(x, dict):
        return x
    ((kind, inside),) = x.items()
    if kind in ("tensor", "complex"):
        return torch.view_as_complex(tensors[inside]) if kind == "complex" else tensors[inside]
    if kind == "module":
        state = OrderedDict((_joined(key, tensors), _joined(value, tensors)) for key, value in inside[0])
        state._metadata = _joined(inside[1], tensors)
        return state
    if kind in ("dict", "Counter"):
        return PLAIN[kind]({_joined(key, tensors): _joined(value, tensors) for key, value in inside})
    return PLAIN[kind](_joined(value, tensors) for value in inside)
