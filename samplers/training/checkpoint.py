"""Checkpoints of a training loop: the states of its parts, in two files, one of which is always whole."""

import json
import math
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from recipe.arguments import number
from recipe.errors import RecipeError

from ..files import storage
from ..files.store import NEW, Lock, Saved, Store, check_lock
from .shards import is_sharded

KIND = "training loop"
PLAIN: dict[str, Callable] = {"dict": dict, "Counter": Counter, "list": list, "tuple": tuple}
# Errors that torch and the parts raise for values without a written form.
UNWRITABLE = KeyError, ValueError, RuntimeError, RecursionError, NotImplementedError


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
        **parts: Any,
    ):
        self.where = f"Checkpoint in {folder}"
        do = "Give the least number of seconds from one to the next."
        self.every = number(self.where, "every", every, least=0, what=f"every = {every!r}", do=do)
        try:
            self.settings = json.loads(json.dumps(dict(settings or {})))
        except (TypeError, ValueError, RecursionError) as error:
            do = "Give a dict of numbers, strings and lists."
            raise RecipeError(f"{self.where}, settings", str(error), do=do) from error
        stateful = {name: _stateful(part) for name, part in parts.items()}
        for name, part in stateful.items():
            self._check_part(name, part)
        if not parts:
            raise RecipeError(self.where, "there is nothing to save", do="Pass model=..., optimizer=...")
        self.every_rank = every_rank
        self.parts: dict[str, Any] = {**stateful, "torch's generators": _Generators(self._is_own)}
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
        than plain data and dense tensors, for weights and states of an Optimizer that are not finite, and where another
        process has written into the folder; the checkpoints before it are then kept.
        """
        if not isinstance(now, bool):
            do = "Pass now=True to save in any case; tell `load` by another name."
            raise RecipeError(self.where, f"now = {now!r}", do=do)
        if not self._is_own or not now and 0 <= time.monotonic() - self._saved < self.every:
            return
        if self._mark == NEW and self._store.exists():
            do = "Call load() before the loop, or choose another folder."
            raise RecipeError(self.where, "it holds a run that has not been loaded", do=do)
        tensors: dict[str, torch.Tensor] = {}
        try:
            for part in self.parts.values():
                getattr(part, "check_state", dict)()
            states = {name: part.state_dict() for name, part in self.parts.items()}
            account = {"states": split(states, "states", tensors), "told": split(notes, "told", tensors)}
            with Lock(self._store.folder):
                self._mark = self._store.write(tensors, self.settings, account, after=self._mark)
        except RecipeError:
            raise
        except UNWRITABLE as error:
            what = f"there is something in the states that cannot be written ({error})"
            raise RecipeError(self.where, what, do="Keep dense tensors of numbers, and plain data.") from error
        self._saved = time.monotonic()

    def _take_up(self, states: dict) -> None:
        """Loads the states into the parts: into all, or into none."""
        if states.keys() != self.parts.keys():
            what = f"it holds the states of {', '.join(map(str, states))}, here are {', '.join(self.parts)}"
            raise RecipeError(self.where, what, do="Pass the same parts.")
        before = {name: deepcopy(part.state_dict()) for name, part in self.parts.items()}
        touched = []
        for name, part in self.parts.items():
            touched.append(name)
            try:
                part.load_state_dict(states[name])
            except Exception as error:  # of the part's own code
                for other in touched:
                    self.parts[other].load_state_dict(before[other])
                do = "Make the same parts, without wrappers such as torch.compile."
                what = f"the state does not fit ({str(error).strip()})"
                raise RecipeError(f"{self.where}, {name}", what, do=do) from error

    def _check_part(self, name: str, part: object) -> None:
        has_state = all(callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict"))
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
        what = "it holds no checkpoint of a training loop"
        raise RecipeError(str(store.folder), what, do="Choose another folder.") from error
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


def _stateful(part: Any) -> Any:
    """A part with `state_dict` and `load_state_dict`; a generator has other names for them."""
    if isinstance(part, torch.Generator):
        return SimpleNamespace(state_dict=part.get_state, load_state_dict=part.set_state)
    return part


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


# ---- states as plain data that JSON can hold, beside their tensors by name

Tensors = dict[str, torch.Tensor]


def split(x: Any, path: str, tensors: Tensors) -> Any:
    """Plain data for x at `path`, with its tensors moved into `tensors`; keys of dicts may be other than strings.

    Torch's pytrees keep neither tuples as keys nor the versions of a module's state. Raises RecipeError for anything
    but dense tensors, numbers, strings, None, and lists, tuples and dicts of these.

    >>> tensors = {}
    >>> split({3: (torch.ones(1), "a")}, "states", tensors)
    {'dict': [[3, {'tuple': [{'tensor': 'states.3.0'}, 'a']}]]}
    >>> tensors
    {'states.3.0': tensor([1.])}
    """
    if is_sharded(x):
        what = "it is sharded over ranks, and this rank has a part of it"
        do = "Save with torch.distributed.checkpoint, as examples/sharded.py does."
        raise RecipeError(f"Checkpoint, {path.split('.', 1)[1]}", what, do=do)
    if torch.is_tensor(x) and x.layout is torch.strided:
        while path in tensors:
            path += "'"
        tensors[path] = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        return {"complex" if x.is_complex() else "tensor": path}
    if isinstance(x, Mapping):
        pairs = [[_key(key, path), split(value, f"{path}.{key}", tensors)] for key, value in x.items()]
        if hasattr(x, "_metadata"):  # of a module: the versions of the states of its parts
            return {"module": [pairs, split(x._metadata, f"{path}._metadata", tensors)]}
        return {"Counter" if isinstance(x, Counter) else "dict": pairs}
    if isinstance(x, (list, tuple)):
        items = [split(value, f"{path}.{k}", tensors) for k, value in enumerate(x)]
        return {"tuple" if isinstance(x, tuple) else "list": items}
    return _plain(x, path)


def _key(x: Any, path: str) -> Any:
    """Plain data for the key of a dict; a tuple is coded entry by entry."""
    return {"tuple": [_key(value, path) for value in x]} if isinstance(x, tuple) else _plain(x, path)


def _plain(x: Any, path: str) -> None | bool | int | float | str:
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise RecipeError(
        f"Checkpoint, {path.split('.', 1)[1]}",
        f"a {type(x).__name__} cannot be saved",
        do="Keep dense tensors, numbers (of numpy by .item()), strings, lists and dicts of them; "
        "functions are not written, nor read.",
    )


def joined(x: Any, tensors: Tensors) -> Any:
    """The value that `split` has taken apart.

    >>> joined({"dict": [[3, {"tuple": [{"tensor": "states.3.0"}, "a"]}]]}, {"states.3.0": torch.ones(1)})
    {3: (tensor([1.]), 'a')}
    """
    if not isinstance(x, dict):
        return x
    ((kind, content),) = x.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "complex":
            return torch.view_as_complex(tensors[content])
        case "module":
            pairs, metadata = content
            state = OrderedDict((joined(key, tensors), joined(value, tensors)) for key, value in pairs)
            setattr(state, "_metadata", joined(metadata, tensors))  # as torch does
            return state
        case "dict" | "Counter":
            return PLAIN[kind]({joined(key, tensors): joined(value, tensors) for key, value in content})
        case _:
            return PLAIN[kind](joined(value, tensors) for value in content)
