"""Tapes: the tensor operations of a function, recorded at one call and played at later calls, without its Python."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from integrators.kernels.addresses import memory
from recipe.errors import in_short, warn

from .potential import ROUNDING
from .tape_inputs import Watch
from .vectorised import OF_STATES

CALLS = 32  # of one form, before a tape is made, which costs about as many
FORMS = 8  # of arguments that have tapes, at most
TRIES = 4  # to make a tape, which an error at some states, or a change of what U reads, prevents
FIRST, EVERY = 3, 256  # calls beside a tape: the first ones, those by powers of two, and one of so many

BURNT = {  # tags of operations whose result another call may not share
    torch.Tag.data_dependent_output: "it reads a number out of a tensor",
    torch.Tag.nondeterministic_seeded: "it draws random numbers",
    torch.Tag.dynamic_output_shape: "the shape of a tensor depends on values",
}


class Tapes:
    """Tapes of one function of tensors, by the form of its arguments: shapes, strides and dtypes.

    A tape has the operations of one call, and reads tensors of a closure where they are, so that changes in place
    count. What else the function `of` reads is watched: a change of it ends the tape. No tape is made of operations
    whose result would be frozen, as `item()` and random numbers. Some calls are made beside the tape; where a bit
    differs, the function is called from there on, with a warning. `refusal`: the reason why there is none.

    >>> function = lambda x: (x.sin(),)
    >>> tapes = Tapes(function)
    >>> all(bool(tapes(function, function, x)[0] == x.sin()) for x in torch.rand(2 * CALLS))
    True
    >>> tapes.are_played
    True
    """

    def __init__(self, of: Callable) -> None:
        self.of = of
        self.calls: Counter[tuple] = Counter()
        self.tapes: dict[tuple, Tape] = {}
        self.watch: Watch | None = None
        self.failures = 0
        self.refusal = ""

    @property
    def are_played(self) -> bool:
        """Whether there is a tape."""
        return bool(self.tapes) and not self.refusal

    def __call__(self, function: Callable, pure: Callable, *arguments: Any) -> Any:
        """The result of `function(*arguments)`, by the tape if there is one; `pure`: the function to be recorded."""
        if self.refusal or _is_observed():
            return function(*arguments)
        leaves, spec = _flat(arguments)
        if not all(_is_plain(x) for x in leaves):
            return function(*arguments)
        if self.watch is not None and (change := self.watch.change):
            self._end(f"what it reads changes ({change})")
        form = (repr(spec), torch.get_default_dtype(), *((x.shape, x.stride(), x.dtype) for x in leaves))
        self.calls[form] += 1
        since = self.calls[form] - CALLS
        if form not in self.tapes:
            result = function(*arguments)
            if since >= 0 and len(self.tapes) < FORMS:
                self._record(form, pure, arguments, result)
            return result
        try:
            played = self.tapes[form](leaves)
        except OF_STATES:  # raised at some states, as by a matrix that is not positive
            return function(*arguments)
        is_compared = since <= FIRST or since % EVERY == 0 or since.bit_count() == 1
        return self._checked(played, function(*arguments), since) if is_compared else played

    def _checked(self, played: Any, result: Any, since: int) -> Any:
        """The result of the function, after which no tape is played where that of the tape is another one."""
        if not _same(played, result):
            is_rounding = _near(played, result)
            self.refusal = "its last bits differ" if is_rounding else "it is another function than before"
            if since > FIRST and not is_rounding:
                warn(
                    f"sample, energy: its gradient at a state is another one than before, which up to {EVERY} calls "
                    "have had. Leave counters and random numbers out of it; change tensors that it reads in place."
                )
        return result

    def _record(self, form: tuple, pure: Callable, arguments: tuple, result: Any) -> None:
        """Makes the tape of a form, or sets the reason why there is none; `result`: that of the function."""
        try:
            self.watch = self.watch or Watch(self.of)
            if self.watch.refusal:
                raise NotRecorded(self.watch.refusal)
            tape = Tape(pure, arguments)
            if _same(tape(tree_leaves(arguments)), result):
                self.tapes[form] = tape
            else:
                self.refusal = "its numbers differ"
        except NotRecorded as error:
            self.refusal = str(error)
        except Exception as error:  # raised by the function, at these states perhaps, or by the interpreter
            self.calls[form] = 0
            self._fail(in_short(error))

    def _end(self, reason: str) -> None:
        """Ends all tapes; others are made after as many calls as at first."""
        self.tapes.clear()
        self.calls.clear()
        self.watch = None
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        if self.failures == TRIES:
            self.refusal = reason


class Tape:
    """The operations of one call of a function, played by torch's interpreter in C++."""

    def __init__(self, function: Callable, arguments: tuple) -> None:
        leaves = tree_leaves(arguments)
        recorder = Recorder(leaves)
        with recorder:
            values, self.form = _flat(function(*arguments))
        self.number = len(values)
        outputs = [*(recorder.slot(x) for x in values), *recorder.infos]
        operations = recorder.needed(outputs)
        inputs = recorder.inputs
        self.closed_over = list(inputs.values())[len(leaves) :]

        def played(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            known = dict(zip(inputs, tensors))
            for one in operations:
                known.update(zip(one.results, tree_leaves(one(known))))
            return tuple(known[slot] for slot in outputs)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated; without it there are no tapes
            self.interpreted = torch.jit.trace(played, tuple(inputs.values()), check_trace=False)

    def __call__(self, leaves: Sequence[torch.Tensor]) -> Any:
        # the interpreter's optimiser may change bits, and results of inference mode are no tensors for autograd
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            values = self.interpreted(*leaves, *self.closed_over)
            if any(info.any() for info in values[self.number :]):
                raise FactorisationError
        results = tuple(x.clone() for x in values[: self.number])
        return results if self.form is None else tree_unflatten(results, self.form)


@dataclass(frozen=True)
class Slot:
    """The place of a tensor on a tape."""

    number: int


@dataclass(frozen=True)
class Operation:
    """An operation of torch, with slots for tensors, and those of its results."""

    function: Any
    args: tuple
    kwargs: dict[str, Any]
    results: list[Slot]

    def __call__(self, known: Mapping[Slot, torch.Tensor]) -> Any:
        """The results for known tensors by slot."""
        args, kwargs = tree_map_only(Slot, known.__getitem__, (self.args, self.kwargs))
        return self.function(*args, **kwargs)

    @property
    def infos(self) -> list[Slot]:
        """The slots of results that say where a factorisation failed; vmap reads such numbers unseen."""
        names = [result.name for result in self.function._schema.returns]
        return [slot for name, slot in zip(names, self.results) if name == "info"]

    @property
    def slots(self) -> list[Slot]:
        """The slots of the arguments."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Slot)]


class FactorisationError(ArithmeticError):
    """A matrix that has no factorisation, at some state."""


class NotRecorded(Exception):
    """An operation that no tape has."""


class Recorder(TorchDispatchMode):
    """Writes down the operations of torch inside of its context, those below autograd and vmap.

    `inputs`: tensors that no operation has made, by slot: the arguments `leaves`, and those of a closure.
    """

    def __init__(self, leaves: list[torch.Tensor]) -> None:
        super().__init__()
        self.slots: dict[int, Slot] = {}
        self.alive: list[torch.Tensor] = []  # so that an id is of one tensor
        self.inputs: dict[Slot, torch.Tensor] = {}
        self.constants: set[Slot] = set()  # made of no input
        self.operations: list[Operation] = []
        for x in leaves:
            self.slot(x)

    def slot(self, x: torch.Tensor) -> Slot:
        """The slot of a tensor, which is an input if it is new."""
        if id(x) not in self.slots:
            self.inputs[self._made(x)] = x
        return self.slots[id(x)]

    def _made(self, x: torch.Tensor) -> Slot:
        if id(x) not in self.slots:  # an operation in place returns its argument
            self.alive.append(x)
            self.slots[id(x)] = Slot(len(self.slots))
        return self.slots[id(x)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # where True, torch imports its compiler, for a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        slots, named = tree_map_only(torch.Tensor, self.slot, (args, kwargs or {}))
        one = Operation(func, slots, named, [])
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        of_constants = not is_random and self.constants.issuperset(one.slots)
        for tag, why in BURNT.items():
            if tag in func.tags and not (of_constants or self._has_fixed_shape(func, args, slots)):
                raise NotRecorded(why)
        if func is torch.ops.aten._efficientzerotensor.default:  # torch crashes where a mode sees work on it
            raise NotRecorded("a forward derivative in it has zeros that torch does not store")
        if not func._schema.returns and func is not torch.ops.aten._linalg_check_errors.default:
            raise NotRecorded("it asserts what depends on values")
        values = func(*args, **(kwargs or {}))
        one.results.extend(self._made(x) for x in tree_leaves(values))
        self.operations.append(one)
        if of_constants:
            self.constants.update(one.results)
        elif func._schema.is_mutable:
            by_name = {a.name: x for a, x in zip(func._schema.arguments, args)} | (kwargs or {})
            changes = [by_name.get(a.name) for a in func._schema.arguments if a.alias_info is not None]
            places = {memory(x) for x in tree_leaves(changes) if isinstance(x, torch.Tensor)}
            self.constants = {slot for slot in self.constants if memory(self.alive[slot.number]) not in places}
        return values

    def _has_fixed_shape(self, function: Any, args: tuple, slots: tuple) -> bool:
        """Whether an operation is x[i] with indices i that are integers, whose shape is theirs, or constant masks."""
        if function is not torch.ops.aten.index.Tensor:
            return False
        indices = [(i, slot) for i, slot in zip(args[1], slots[1]) if i is not None]
        return all(slot in self.constants or i.dtype not in (torch.bool, torch.uint8) for i, slot in indices)

    @property
    def infos(self) -> list[Slot]:
        """The slots that say where a factorisation failed, of all operations."""
        return [slot for one in self.operations for slot in one.infos]

    def needed(self, outputs: list[Slot]) -> list[Operation]:
        """The operations without those whose results nothing reads."""
        slots, kept = set(outputs), []
        for one in reversed(self.operations):
            if one.function._schema.is_mutable or not slots.isdisjoint(one.results):
                slots.update(one.slots)
                kept.append(one)
        return kept[::-1]


def _flat(x: tuple) -> tuple[Sequence[Any], Any]:
    """The leaves of a tuple, and its form; None for a tuple of tensors."""
    return (x, None) if all(type(part) is torch.Tensor for part in x) else tree_flatten(x)


def _is_plain(x: Any) -> bool:
    """Whether an argument is an ordinary tensor of a CPU."""
    return type(x) is torch.Tensor and x.device.type == "cpu" and x.layout is torch.strided


def _is_observed() -> bool:
    """Whether a transform of torch.func, a mode or autocast sees the operations."""
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_transformed or torch._C._len_torch_dispatch_stack() > 0 or torch.is_autocast_enabled("cpu")


def _same(one: Any, other: Any) -> bool:
    """Whether results have the same bits, where nan is nan."""
    pairs = list(zip(tree_leaves(one), tree_leaves(other)))
    alike = all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
    return alike and all(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in pairs)


def _near(one: Any, other: Any) -> bool:
    """Whether results differ by rounding alone, of their lengths."""
    pairs = zip(tree_leaves(one), tree_leaves(other))
    return all((x - y).norm() <= ROUNDING.get(y.dtype, 0.0) * y.norm() for x, y in pairs)
