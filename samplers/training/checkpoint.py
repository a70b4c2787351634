"""Checkpoints of a training loop: the states of its parts, in two files, one of which is always whole."""

import json
import math
import os
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recipe.arguments import number
from recipe.errors import RecipeError

from ..files import storage
from ..files.store import NEW, Lock, Saved, Store, check_lock
from .coding import joined, split

KIND = "training loop"
# Errors that torch and the parts raise for values without a written form.
UNWRITABLE = KeyError, ValueError, RuntimeError, RecursionError, NotImplementedError


class Stateful(Protocol):
    """A part of a training loop with a state to save and load."""

    def state_dict(self) -> Any:
        """Returns the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Loads a state."""


Part = Stateful | torch.Generator


class Checkpoint:
    """Checkpoints for resuming a training loop that was killed: states of its parts, saved whole or not at all.

    `parts`, by names of your choice: objects with `state_dict()` and `load_state_dict()` (the model, the optimizer,
    schedulers, a GradScaler, Minibatches, Predictive, SVRG), and torch.Generators. Torch's global generators, which
    dropout draws from, are saved too; those of numpy and Python are not. `settings`: plain data, the same for a run to
    be resumed. `every`: the least number of seconds from one checkpoint to the next.

    The two latest checkpoints are kept in `folder`, tensors as safetensors, all else as JSON, with a SHA-256 of both;
    nothing in the files is executed. Under torchrun rank 0 saves for all ranks, whose weights are the same, and all
    ranks load its checkpoint except torch's global generators. With `every_rank` each rank saves and loads its own
    parts, such as members of an Ensemble, in a folder inside; ranks killed between their saves are at different steps.
    Raises RecipeError for the folder of another run, or of another number of ranks, before anything is overwritten.

    >>> import tempfile
    >>> checkpoint = Checkpoint(tempfile.mkdtemp(), model=torch.nn.Linear(2, 1))
    >>> first = checkpoint.load().get("epoch", 0)
    >>> for epoch in range(first, 2):
    ...     checkpoint.save(epoch=epoch + 1)
    >>> checkpoint.load()
    {'epoch': 2}
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        /,
        *,
        every: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        every_rank: bool = False,
        **parts: Part,
    ):
        self.where = f"Checkpoint in {folder}"
        reason = f"every = {every!r}"
        advice = "Give the least number of seconds from one to the next."
        self.every = number(self.where, "every", every, least=0, what=reason, do=advice)
        self.settings = self._plain(settings or {})
        for name, part in parts.items():
            self._check_part(name, part)
        if not parts:
            raise RecipeError(self.where, "there is nothing to save", do="Pass model=..., optimizer=...")
        self.every_rank = every_rank
        self.parts: dict[str, Part] = {**parts, "torch's generators": _Generators(self._is_own)}
        self._saved = -math.inf  # the time of the last save, in seconds
        self._mark = NEW
        self._store = Store(_of_rank(folder, self.where) if every_rank else folder, KIND)
        storage.make_folder(self._store.folder)

    @property
    def _is_own(self) -> bool:
        """Whether this rank writes the checkpoints in the folder."""
        return self.every_rank or not _rank()

    def load(self) -> dict[str, Any]:
        """Loads the latest checkpoint into all parts, and returns the notes of its `save`, {} in a new folder.

        The parts are unchanged where RecipeError is raised.
        """
        if dist.is_initialized():
            dist.barrier()
        check_lock(self._store.folder)
        saved = self._store.newest(self.settings)
        if dist.is_initialized():
            dist.barrier()
        if saved is None:
            self._mark = NEW
            return {}
        states, notes = _parts_of(self._store, saved)
        self._take_up(states)
        self._mark = saved.mark
        return notes

    def save(self, *, now: bool = False, **notes: Any) -> None:
        """Writes the states of all parts, and `notes`, plain data for `load` to return.

        Does nothing less than `every` seconds after the last save, unless `now`. Raises RecipeError for values other
        than plain data and dense tensors, and where another process has written into the folder.
        """
        if not isinstance(now, bool):
            raise RecipeError(
                self.where, f"now = {now!r}", do="Pass now=True to save in any case; tell `load` by another name."
            )
        if not self._is_own or not now and time.monotonic() - self._saved < self.every:
            return
        if self._mark == NEW and self._store.exists():
            raise RecipeError(
                self.where,
                "it holds a run that has not been loaded",
                do="Call load() before the loop, or choose another folder.",
            )
        try:
            self._write(notes)
        except RecipeError:
            raise
        except UNWRITABLE as error:
            raise RecipeError(
                self.where,
                f"there is something in the states that cannot be written ({error})",
                do="Keep dense tensors of numbers, and plain data.",
            ) from error
        self._saved = time.monotonic()

    def _write(self, notes: dict) -> None:
        tensors: dict[str, torch.Tensor] = {}
        states = {name: _state_of(part) for name, part in self.parts.items()}
        account = {"states": split(states, "states", tensors), "told": split(notes, "told", tensors)}
        with Lock(self._store.folder):
            self._mark = self._store.write(tensors, self.settings, account, after=self._mark)

    def _take_up(self, states: dict) -> None:
        """Loads the states into the parts: into all, or into none."""
        if states.keys() != self.parts.keys():
            raise RecipeError(
                self.where,
                f"it holds the states of {', '.join(states)}, here are {', '.join(self.parts)}",
                do="Pass the same parts.",
            )
        before = {name: deepcopy(_state_of(part)) for name, part in self.parts.items()}
        touched = []
        for name, part in self.parts.items():
            touched.append(name)
            try:
                _put(part, states[name])
            except Exception as error:  # of the part's own code
                for other in touched:
                    _put(self.parts[other], before[other])
                raise RecipeError(
                    f"{self.where}, {name}",
                    f"the state does not fit ({str(error).strip()})",
                    do="Make the same parts, without wrappers such as torch.compile.",
                ) from error

    def _plain(self, settings: Mapping) -> dict[str, Any]:
        """The settings, written as JSON and read back."""
        try:
            return json.loads(json.dumps(dict(settings)))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecipeError(
                f"{self.where}, settings", str(error), do="Give a dict of numbers, strings and lists."
            ) from error

    def _check_part(self, name: str, part: object) -> None:
        methods = [getattr(part, method, None) for method in ("state_dict", "load_state_dict")]
        has_state = isinstance(part, torch.Generator) or all(map(callable, methods))
        if isinstance(part, type) or not has_state:
            raise RecipeError(
                self.where,
                f"{name}, a {type(part).__name__}, has no state_dict and load_state_dict",
                do="Give a number to save(epoch=...), which load() returns; for a DataLoader pass the Minibatches that "
                "order it, see Minibatches.as_sampler.",
            )


def read(folder: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a checkpoint without its training loop: the states of the parts by name, and the notes of `save`.

    Raises RecipeError where there is no checkpoint of a training loop, or none that is intact.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> Checkpoint(folder, model=torch.nn.Linear(2, 1)).save(epoch=1)
    >>> states, notes = read(folder)
    >>> list(states["model"]), notes
    (['weight', 'bias'], {'epoch': 1})
    """
    store = Store(folder, KIND)
    saved = store.newest()
    if saved is None:
        raise RecipeError(str(store.folder), "there is no checkpoint", do="Pass the folder of a Checkpoint.")
    return _parts_of(store, saved)


def _parts_of(store: Store, saved: Saved) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of the parts by name, and the notes of `save`."""
    try:
        states = joined(saved.account["states"], saved.tensors)
        notes = joined(saved.account["told"], saved.tensors)
        if not isinstance(states, dict) or not isinstance(notes, dict):
            raise TypeError("these are no dicts")
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise RecipeError(
            str(store.folder), "it holds no checkpoint of a training loop", do="Choose another folder."
        ) from error
    return states, notes


class _Generators:
    """Torch's global generators as a part of the loop; a rank without a checkpoint of its own loads none."""

    def __init__(self, is_own: bool):
        self.is_own = is_own

    def state_dict(self) -> dict:
        on_gpus = enumerate(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        return {"cpu": torch.get_rng_state(), **dict(on_gpus)}

    def load_state_dict(self, state: dict, /) -> None:
        if not self.is_own:
            return
        for device, x in state.items():
            if device == "cpu":
                torch.set_rng_state(x)
            elif device < torch.cuda.device_count():
                torch.cuda.set_rng_state(x, device)


def _state_of(part: Part) -> Any:
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def _put(part: Part, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
    else:
        part.load_state_dict(state)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _of_rank(folder: str | os.PathLike, where: str) -> Path:
    """The folder of this rank inside `folder`; RecipeError where folders of another number of ranks are there."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    for other in Path(folder).glob("rank-*-of-*"):
        if not other.name.endswith(f"-of-{ranks}"):
            what = f"it holds {other.name}, and there are {ranks} ranks"
            raise RecipeError(where, what, do="Start as many as there were, or choose another folder.")
    return Path(folder) / f"rank-{_rank()}-of-{ranks}"
