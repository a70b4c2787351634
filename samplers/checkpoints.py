"""Checkpoints of a run: two files in a folder, of which one is always whole, and the state of a training loop in them."""

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from recipe.errors import RecipeError

from . import storage


class Pair:
    """Two checkpoints in a folder that are written in turn: a run that is killed leaves one of them whole.

    Raises RecipeError for a folder that cannot be made, if no checkpoint in it is intact, and if somebody else has written there.
    """

    def __init__(self, folder):
        self.folder, self.generation = Path(folder), 0
        self.files = [self.folder / f"state-{k}.safetensors" for k in (0, 1)]
        self._seen = self._stamps()

    def make_folder(self) -> None:
        """Make the folder where there is none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecipeError(str(self.folder), f"cannot be written ({error.strerror or error})",
                              do="Choose a folder with room that you may write to.") from error

    def newest(self, settings: Mapping | None = None) -> tuple[dict[str, torch.Tensor], dict] | None:
        """The latest that is intact, of a run of these settings if any are given: tensors and plain data; None in a new folder."""
        found, broken = [], []
        for path in filter(Path.exists, self.files):
            try:
                values, account = storage.read(path, "checkpoint")
                found.append((account["generation"], path, values, account))
            except RecipeError:
                broken.append(path)
        if broken and not found:
            raise RecipeError(str(self.folder), f"no checkpoint is intact, neither {' nor '.join(path.name for path in broken)}",
                              do="Restore one from a copy, or start in another folder.")
        if not found:
            return None
        generation, path, values, account = max(found, key=lambda one: one[0])
        for other in broken:
            warnings.warn(f"{other} is not intact: the run goes on from the one before it, {path}", RuntimeWarning, stacklevel=4)
        for name in {**settings, **account["settings"]} if settings is not None else ():
            mine, other = settings.get(name), account["settings"].get(name)
            if mine != other:
                raise RecipeError(str(self.folder), f"it holds a run of {name} = {other}, this one has {mine}",
                                  do="Give the settings of that run, or choose another folder.")
        self.generation, self._seen = generation + 1, self._stamps()
        return values, account

    def write(self, tensors: Mapping[str, torch.Tensor], settings: Mapping, account: Mapping) -> None:
        """Write the next, in place of the last but one."""
        if self._stamps() != self._seen:
            raise RecipeError(str(self.folder), "another run has written there", do="Choose another folder.")
        for left in self.folder.glob(".state-?.safetensors.*"):  # by a run that was killed
            left.unlink(missing_ok=True)
        storage.write(self.files[self.generation % 2], "checkpoint", tensors,
                      {"generation": self.generation, "settings": settings, **account})
        self.generation, self._seen = self.generation + 1, self._stamps()

    def _stamps(self):
        found = [path.stat() if path.exists() else None for path in self.files]
        return [s and (s.st_ino, s.st_mtime_ns, s.st_size) for s in found]


class Checkpoint:
    """A training loop that goes on where it was killed: the states of its parts, saved whole or not at all.

    `parts` are what has `state_dict()` and `load_state_dict()`, by names of your choice: the model, the optimizer, schedulers, a GradScaler,
    Minibatches, Predictive, SVRG; and torch.Generators. Torch's own generators, which dropout draws from, go along. `settings`,
    plain data, must be the same for a run to go on. The two latest are kept in `folder`, tensors as safetensors, all else as JSON,
    with a SHA-256 of both; nothing in them is executed. Under torchrun rank 0 saves for all, whose weights are the same, and all
    ranks load what it has saved. Raises RecipeError for the folder of another run, before anything is overwritten.

    >>> import tempfile
    >>> checkpoint = Checkpoint(tempfile.mkdtemp(), model=torch.nn.Linear(2, 1))
    >>> first = checkpoint.load().get("epoch", 0)
    >>> for epoch in range(first, 2):
    ...     checkpoint.save(epoch=epoch + 1)
    >>> checkpoint.load()
    {'epoch': 2}
    """

    def __init__(self, folder, *, every: float = 0.0, settings: Mapping | None = None, **parts):
        self.where = f"Checkpoint in {folder}"
        if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 <= every < math.inf:
            raise RecipeError(self.where, f"every = {every!r}", do="Give the least number of seconds from one to the next.")
        self.parts, self.every, self.saved = parts, every, -math.inf
        for name, part in parts.items():
            if not isinstance(part, torch.Generator) and not all(callable(getattr(part, f, None)) for f in ("state_dict", "load_state_dict")):
                raise RecipeError(self.where, f"{name}, a {type(part).__name__}, has no state_dict and load_state_dict",
                                  do="Leave it out; for a DataLoader pass the Minibatches that order it, see Minibatches.as_sampler.")
        if not parts:
            raise RecipeError(self.where, "there is nothing to save", do="Pass model=..., optimizer=...")
        try:
            self.settings = json.loads(json.dumps(dict(settings or {})))
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{self.where}, settings", str(error), do="Give a dict of numbers, strings and lists.") from error
        self.pair = Pair(folder)
        self.pair.make_folder()

    def load(self) -> dict:
        """Put all parts where the run before this one has left them; what `save` was told then, {} in a new folder."""
        if dist.is_initialized():
            dist.barrier()
        found = self.pair.newest(self.settings)
        if dist.is_initialized():
            dist.barrier()
        if found is None:
            return {}
        tensors, account = found
        states = _joined(account["states"], tensors)
        if states.keys() != self.parts.keys():
            raise RecipeError(self.where, f"it holds the states of {', '.join(states)}, here are {', '.join(self.parts)}", do="Pass the same parts.")
        for name, part in self.parts.items():
            state = states[name]
            try:
                part.set_state(state) if isinstance(part, torch.Generator) else part.load_state_dict(state)
            except (RuntimeError, ValueError, TypeError, KeyError) as error:
                raise RecipeError(f"{self.where}, {name}", f"the state does not fit ({str(error).strip()})", do="Make the same parts.") from error
        if _rank() == 0:
            torch.set_rng_state(tensors["generator"])
            for k in range(torch.cuda.device_count()):
                if f"generator.{k}" in tensors:
                    torch.cuda.set_rng_state(tensors[f"generator.{k}"], k)
        return _joined(account["told"], tensors)

    def save(self, *, now: bool = False, **told) -> None:
        """Write the states of all parts, and plain data for `load` to return, unless that was done `every` seconds ago; `now` in any case."""
        if _rank() or not now and time.monotonic() - self.saved < self.every:
            return
        if self.pair.generation == 0 and any(path.exists() for path in self.pair.files):
            raise RecipeError(self.where, "it holds a run that has not been loaded", do="Call load() before the loop, or choose another folder.")
        tensors = {"generator": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            tensors |= {f"generator.{k}": x for k, x in enumerate(torch.cuda.get_rng_state_all())}
        states = {name: part.get_state() if isinstance(part, torch.Generator) else part.state_dict() for name, part in self.parts.items()}
        account = {"states": _split(states, "", tensors), "told": _split(told, "", tensors)}
        self.pair.write(tensors, self.settings, account)
        self.saved = time.monotonic()


def read(folder) -> tuple[dict, dict]:
    """The states of the parts of a training loop by name, and what `save` was told, without a loop to put them in."""
    found = Pair(folder).newest()
    if found is None or "states" not in found[1]:
        raise RecipeError(str(folder), "there is no checkpoint of a training loop", do="Pass the folder of a Checkpoint.")
    return tuple(_joined(found[1][part], found[0]) for part in ("states", "told"))


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


KINDS = {"dict": dict, "Counter": Counter, "list": list, "tuple": tuple}


def _split(x, path, tensors):
    """Plain data that JSON can hold, with the names of the tensors that are put aside; keys need be no strings."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if torch.is_tensor(x) and x.layout is torch.strided:
        while path in tensors:
            path += "'"
        tensors[path] = x
        return {"tensor": path}
    inside = lambda key, value: _split(value, f"{path}.{key}" if path else str(key), tensors)
    if isinstance(x, Mapping):
        return {"Counter" if isinstance(x, Counter) else "dict": [[_split(key, path, {}), inside(key, value)] for key, value in x.items()]}
    if isinstance(x, (list, tuple)):
        return {"tuple" if isinstance(x, tuple) else "list": [inside(k, value) for k, value in enumerate(x)]}
    raise RecipeError(f"Checkpoint, {path}", f"a {type(x).__name__} cannot be saved",
                      do="Keep tensors, numbers, strings, lists and dicts of them; functions are not written, nor read.")


def _joined(x, tensors):
    """What `_split` took apart."""
    if not isinstance(x, dict):
        return x
    (kind, inside), = x.items()
    if kind == "tensor":
        return tensors[inside]
    if kind in ("dict", "Counter"):
        return KINDS[kind]({_joined(key, tensors): _joined(value, tensors) for key, value in inside})
    return KINDS[kind](_joined(value, tensors) for value in inside)
