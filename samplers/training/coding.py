"""States of a training loop's parts as plain data that JSON can hold, beside their tensors by name."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from recipe.errors import RecipeError

from .shards import is_sharded

PLAIN: dict[str, Callable] = {"dict": dict, "Counter": Counter, "list": list, "tuple": tuple}

Tensors = dict[str, torch.Tensor]


def split(x: Any, path: str, tensors: Tensors) -> Any:
    """Plain data for x at `path`, with its tensors moved into `tensors`; keys of dicts may be other than strings.

    Raises RecipeError for anything but dense tensors, numbers, strings, None, and lists, tuples and dicts of these.

    >>> tensors = {}
    >>> split({3: (torch.ones(1), "a")}, "states", tensors)
    {'dict': [[3, {'tuple': [{'tensor': 'states.3.0'}, 'a']}]]}
    >>> tensors
    {'states.3.0': tensor([1.])}
    """
    if is_sharded(x):
        raise RecipeError(
            f"Checkpoint, {path.split('.', 1)[1]}",
            "it is sharded over ranks, and this rank has a part of it",
            do="Save with torch.distributed.checkpoint, as examples/sharded.py does.",
        )
    if torch.is_tensor(x) and x.layout is torch.strided:
        return _put_aside(x, path, tensors)
    if isinstance(x, Mapping):
        pairs = [[_key(key, path), split(value, f"{path}.{key}", tensors)] for key, value in x.items()]
        if hasattr(x, "_metadata"):  # of a module: the versions of the states of its parts
            return {"module": [pairs, split(x._metadata, f"{path}._metadata", tensors)]}
        return {"Counter" if isinstance(x, Counter) else "dict": pairs}
    if isinstance(x, (list, tuple)):
        items = [split(value, f"{path}.{k}", tensors) for k, value in enumerate(x)]
        return {"tuple" if isinstance(x, tuple) else "list": items}
    return _plain(x, path)


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
            state = OrderedDict(_joined_pairs(pairs, tensors))
            setattr(state, "_metadata", joined(metadata, tensors))  # as torch does
            return state
        case "dict" | "Counter":
            return PLAIN[kind](_joined_pairs(content, tensors))
        case _:
            return PLAIN[kind](joined(value, tensors) for value in content)


def _put_aside(x: torch.Tensor, path: str, tensors: Tensors) -> dict[str, str]:
    while path in tensors:
        path += "'"
    if x.is_complex():
        tensors[path] = torch.view_as_real(x.resolve_conj())
        return {"complex": path}
    tensors[path] = x
    return {"tensor": path}


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


def _joined_pairs(pairs: list, tensors: Tensors) -> dict:
    return {joined(key, tensors): joined(value, tensors) for key, value in pairs}
