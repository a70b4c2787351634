"""Addresses of tensors for compiled code: nobody else takes one, so that each is asked first what its tensor is.

Compiled code takes what lies at an address for numbers of one type, one after another. A tensor may mean something else
by its memory: the negative of what lies there, another order, nothing at all. `plain` gives the numbers that it means.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.autograd import forward_ad

from recipe.errors import RecipeError

OF_TORCH = vars(torch.Tensor)["__torch_function__"].__func__, torch.nn.Parameter.__torch_function__
NamedTensors = list[tuple[str, torch.Tensor]]


def plain(where: str, t: torch.Tensor) -> torch.Tensor:
    """The values of a tensor, row after row in memory: itself where they lie there, else a copy. It has no graph.

    Raises RecipeError for what has no memory that holds its values: a sparse tensor, one on "meta", one of a class that
    gives torch's operations another meaning, or one that stands for many inside of a transformation of torch.func.

    >>> t = torch._neg_view(torch.ones(3, 2)).T
    >>> plain("doctest", t), plain("doctest", t).is_contiguous()
    (tensor([[-1., -1., -1.],
            [-1., -1., -1.]]), True)
    """
    if _lies_plain(t) and not t.requires_grad:
        return t
    check_plain(where, t)
    values = t.detach().resolve_conj().resolve_neg().contiguous()
    return values if type(values) is torch.Tensor else values.as_subclass(torch.Tensor)


def _lies_plain(t: object) -> bool:
    """Whether the memory of a tensor is its numbers, row after row: the short way of what is asked at length below."""
    return (
        type(t) is torch.Tensor
        and t.layout is torch.strided
        and t.is_contiguous()
        and not (t.is_neg() or t.is_conj() or t.is_meta or t.is_nested)
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def check_plain(where: str, t: object) -> None:
    """Refuse what `plain` refuses."""
    t = _dense(where, t)
    if not _is_common(type(t)):
        name = type(t).__name__
        raise RecipeError(where, f"it is a {name}, which has operations of its own", do="Pass a torch.Tensor.")
    if t.is_meta:
        raise RecipeError(where, "it is on the device 'meta' and has no values", do="Pass a tensor of numbers.")
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        raise RecipeError(
            where, "torch.func transforms it, and it has no memory of its own", do="Use backend='torch' there."
        )


def _dense(where: str, t: object) -> torch.Tensor:
    """A dense tensor; anything else is refused."""
    if not isinstance(t, torch.Tensor):
        raise RecipeError(where, f"it is a {type(t).__name__}, no tensor", do="Pass a tensor.")
    if t.layout is not torch.strided or t.is_nested:
        what = "it is a nested tensor" if t.is_nested else f"its layout is {t.layout}"
        raise RecipeError(where, what, do="Pass a dense tensor: x.to_dense().")
    return t


def check_form(where: str, t: object, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> None:
    """Refuse what is no dense tensor of this type, in this place and of this shape."""
    t = _dense(where, t)
    if t.dtype != dtype or t.device != device:
        raise RecipeError(where, f"it is {t.dtype} on {t.device}, the others {dtype} on {device}", do="Convert one.")
    if t.shape != shape:
        raise RecipeError(
            where,
            f"its shape is {tuple(t.shape)}, not {tuple(shape)}",
            do="A vector has the target's shapes, a scalar one value per chain.",
        )


@lru_cache(maxsize=64)
def _is_common(kind: Any) -> bool:
    """Whether a class of tensors leaves torch's operations as they are."""
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return function in OF_TORCH and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def check_graph(where: str, t: torch.Tensor) -> None:
    """Refuse a tensor whose derivative somebody waits for, which no kernel passes on."""
    if (t.requires_grad and torch.is_grad_enabled()) or _is_dual(t):
        raise RecipeError(
            where,
            "it requires a gradient, which a kernel does not pass on",
            do="Pass x.detach(), step under torch.no_grad(), or use backend='torch'.",
        )


def _is_dual(t: torch.Tensor) -> bool:
    """Whether a derivative is carried forward with a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None


def address(where: str, t: torch.Tensor) -> int:
    """Where the numbers of a tensor begin, which lie there row after row. Who has the address keeps the tensor.

    Raises RecipeError for a tensor whose memory is something else than its numbers; `plain` has none of these.
    """
    if _lies_plain(t):
        return t.data_ptr()
    check_plain(where, t)
    if t.is_neg() or t.is_conj():
        raise RecipeError(where, "it is the lazy negative of its memory", do="Pass x.resolve_neg().")
    if not t.is_contiguous():
        raise RecipeError(
            where, f"its memory has holes or another order, strides {t.stride()}", do="Pass x.contiguous()."
        )
    return t.data_ptr()


def addresses(where: str, tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where the numbers of each of these tensors begin: `address`."""
    return [address(where, t) for t in tensors]


class Alike:
    """Whether tensors are as some were: of their class, type, device, layout, shape, strides and lazy bits.

    One look for hundreds of tensors, as each step of an optimizer takes it.

    >>> alike = Alike([torch.zeros(3, 2)])
    >>> [alike([t]) for t in (torch.ones(3, 2), torch.ones(2, 3).T, torch._neg_view(torch.ones(3, 2)), None)]
    [True, False, False, False]
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._look = _guard(tensors) or _forms_are(tensors)

    def __call__(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether these are."""
        return self._look(*tensors)

    def addresses(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Where tensors begin, each of which is like its own: who has the addresses keeps the tensors."""
        return list(map(torch.Tensor.data_ptr, tensors))


def _guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """The look that torch.compile takes before it runs, in C++; None where torch has another one."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (ImportError, TypeError, ValueError):
        return None


def _forms_are(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    forms = [_form(t) for t in tensors]
    return lambda *others: [_form(t) for t in others] == forms


def _form(t: torch.Tensor | None) -> tuple | None:
    if t is None or t.layout is not torch.strided:
        return None
    return type(t), t.dtype, t.device, t.shape, t.stride(), t.is_neg(), t.is_conj(), t.requires_grad


def starts(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where the memory of tensors begins, to be compared: nothing is read there."""
    return list(map(torch.Tensor.data_ptr, tensors))


def check_apart(name: str, read: NamedTensors, written: NamedTensors) -> None:
    """Refuse memory that is written under two names, or written under one and read under another."""
    spans = sorted([*_spans(read, False), *_spans(written, True)])
    end, owner, owner_is_written = -1, "", False
    for start, stop, what, is_written in spans:
        if start < end and owner != what and (is_written or owner_is_written):
            raise RecipeError(f"{name}, {owner}", f"it and {what} share memory", do="Give each memory of its own.")
        if stop > end:
            end, owner, owner_is_written = stop, what, is_written


def _spans(tensors: NamedTensors, is_written: bool) -> Iterable[tuple[int, int, str, bool]]:
    """Where the numbers of dense tensors begin and end."""
    for what, t in tensors:
        if t.numel():
            yield t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), what, is_written
