"""Addresses of tensors for compiled code, taken only here, after a check of the tensor's memory.

Compiled code reads the memory at an address as contiguous numbers of one dtype. The memory of a tensor may differ from
its values: their negative, in another order, or none at all. `plain` gives a tensor whose memory is its values.
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
    """The values of a tensor, contiguous in memory and detached: the tensor itself where possible, else a copy.

    Raises RecipeError for tensors without memory that holds their values: sparse tensors, tensors on "meta", of a class
    that overrides torch's operations, or inside of a transformation of torch.func.

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
    """Whether the memory of a tensor is its values, row after row: a fast test that accepts the common case."""
    return (
        type(t) is torch.Tensor
        and t.layout is torch.strided
        and t.is_contiguous()
        and not (t.is_neg() or t.is_conj() or t.is_meta or t.is_nested)
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def check_plain(where: str, t: object) -> None:
    """Refuse the tensors that `plain` refuses."""
    t = _dense(where, t)
    if not _is_common(type(t)):
        name = type(t).__name__
        raise RecipeError(where, f"it is a {name}, which has operations of its own", do="Pass a torch.Tensor.")
    if t.is_meta:
        raise RecipeError(where, "it is on the device 'meta' and has no values", do="Pass a tensor of numbers.")
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        what = "torch.func transforms it, and it has no memory of its own"
        raise RecipeError(where, what, do="Use backend='torch' there.")


def _dense(where: str, t: object) -> torch.Tensor:
    """The object itself if it is a dense tensor; raises RecipeError otherwise."""
    if not isinstance(t, torch.Tensor):
        raise RecipeError(where, f"it is a {type(t).__name__}, no tensor", do="Pass a tensor.")
    if t.layout is not torch.strided or t.is_nested:
        what = "it is a nested tensor" if t.is_nested else f"its layout is {t.layout}"
        raise RecipeError(where, what, do="Pass a dense tensor: x.to_dense().")
    return t


def check_form(where: str, t: object, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> None:
    """Refuse objects other than dense tensors of the given dtype, device and shape."""
    t = _dense(where, t)
    if t.dtype != dtype or t.device != device:
        raise RecipeError(where, f"it is {t.dtype} on {t.device}, the others {dtype} on {device}", do="Convert one.")
    if t.shape != shape:
        what = f"its shape is {tuple(t.shape)}, not {tuple(shape)}"
        raise RecipeError(where, what, do="A vector has the target's shapes, a scalar one value per chain.")


@lru_cache(maxsize=64)
def _is_common(kind: Any) -> bool:
    """Whether a class of tensors does not override torch's operations."""
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return function in OF_TORCH and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def check_graph(where: str, t: torch.Tensor) -> None:
    """Refuse a tensor with a gradient or a tangent to propagate: kernels propagate none."""
    if (t.requires_grad and torch.is_grad_enabled()) or _is_dual(t):
        what = "it requires a gradient, which a kernel does not pass on"
        raise RecipeError(where, what, do="Pass x.detach(), step under torch.no_grad(), or use backend='torch'.")


def readable(where: str, t: torch.Tensor) -> torch.Tensor:
    """The `plain` values of a tensor that has no gradient or tangent to propagate."""
    check_graph(where, t)
    return plain(where, t)


def _is_dual(t: torch.Tensor) -> bool:
    """Whether a tensor has a tangent of forward-mode differentiation."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None


def address(where: str, t: torch.Tensor) -> int:
    """The address of a tensor's values, contiguous from there on; the caller must keep the tensor alive.

    Raises RecipeError for a tensor whose memory differs from its values; a tensor of `plain` is never refused.
    """
    if _lies_plain(t):
        return t.data_ptr()
    check_plain(where, t)
    if t.is_neg() or t.is_conj():
        raise RecipeError(where, "it is the lazy negative of its memory", do="Pass x.resolve_neg().")
    if not t.is_contiguous():
        what = f"its memory has holes or another order, strides {t.stride()}"
        raise RecipeError(where, what, do="Pass x.contiguous().")
    return t.data_ptr()


def addresses(where: str, tensors: Iterable[torch.Tensor]) -> list[int]:
    """The `address` of each tensor."""
    return [address(where, t) for t in tensors]


def comparison(tensors: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor | None]], bool]:
    """A function that compares tensors with given ones: class, dtype, device, layout, shape, strides and lazy bits.

    One fast call compares hundreds of tensors, as every step of an optimizer does.

    >>> alike = comparison([torch.zeros(3, 2)])
    >>> [alike([t]) for t in (torch.ones(3, 2), torch.ones(2, 3).T, torch._neg_view(torch.ones(3, 2)), None)]
    [True, False, False, False]
    """

    look = _guard(tensors) or _forms_are(tensors)
    return lambda candidates: look(*candidates)


def _guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """The comparison by torch.compile's guards, in C++; None if this version of torch lacks them."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (ImportError, TypeError, ValueError):
        return None


def _forms_are(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    forms = [_form(t) for t in tensors]
    return lambda *candidates: [_form(t) for t in candidates] == forms


def _form(t: torch.Tensor | None) -> tuple | None:
    if t is None or t.layout is not torch.strided:
        return None
    return type(t), t.dtype, t.device, t.shape, t.stride(), t.is_neg(), t.is_conj(), t.requires_grad


def starts(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The addresses of tensors, for comparison only: nothing may read there."""
    return list(map(torch.Tensor.data_ptr, tensors))


def memory(t: torch.Tensor) -> int:
    """The address of the memory that a tensor shares with its views, for comparison only."""
    return t.untyped_storage().data_ptr()


def check_apart(name: str, read: NamedTensors, written: NamedTensors) -> None:
    """Refuse tensors that share memory, if at least one of them is written."""
    spans = sorted([*_spans(read, False), *_spans(written, True)])
    end, owner, owner_is_written = -1, "", False
    for start, stop, what, is_written in spans:
        if start < end and owner != what and (is_written or owner_is_written):
            raise RecipeError(f"{name}, {owner}", f"it and {what} share memory", do="Give each memory of its own.")
        if stop > end:
            end, owner, owner_is_written = stop, what, is_written


def _spans(tensors: NamedTensors, is_written: bool) -> Iterable[tuple[int, int, str, bool]]:
    """Address ranges of dense tensors: first byte, end, name, whether written."""
    for what, t in tensors:
        if t.numel():
            yield t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), what, is_written
