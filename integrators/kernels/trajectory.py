"""Kernels of many steps: chains on a symbolic energy, moved in one call."""

import ctypes
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

from recipe.errors import RecipeError
from recipe.symbols import num_data, step_number

from ..backends.cpp_unrolled import UNROLLED_SITES, sites_of, unrolled_source
from ..backends.cpp_by_site import by_site_source
from ..backends.loading import load
from ..backends.torch import constants_source
from ..backends.torch_expressions import python_names
from ..noise import Key
from ..passes import inputs, is_by_site
from ..program import Program
from .native import library

NUMBER_TYPES = {torch.float32: "float", torch.float64: "double"}
LANES = (16, 64)  # chains of a lane block: the smallest that holds all of them, else the largest


def check_numbers(where: str, like: torch.Tensor, devices) -> None:
    """Refuse a state of another type, or in another place, than kernels run on."""
    if like.device.type not in devices or like.dtype not in NUMBER_TYPES:
        raise RecipeError(
            where,
            f"the state is {like.dtype} on {like.device}",
            do=f"Kernels run on float32 and float64 on {', '.join(devices)}: convert it, or use backend='torch'.",
        )


def _at(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Constants:
    """What a kernel asks for of a step size, a temperature, parameters and a step number: `wanted`, in float64.

    `shape` is that of the sites of one chain; a value per site comes as a tensor of this shape.
    """

    def __init__(self, program: Program, wanted, shape):
        self.wanted, self.names, self.shape, self.where = wanted, python_names(program), shape, program.recipe.name
        self.like = (
            torch.empty((1, 1), dtype=torch.float64).expand(1, *shape) if shape else torch.empty(1, dtype=torch.float64)
        )
        source = constants_source(program, wanted)
        self.function = load(source, f"<sde-recipe {program.recipe.name} constants>")["constants"]
        self.changes = program.reads(step_number)

    def __call__(self, h, temperature, number, parameters) -> list:
        """The values in the order of `wanted`, those per site as tensors of their shape."""
        given = {s.name: parameters[s.name] for s in (num_data,) if s.name in parameters}
        given |= {self.names.get(name, name): v for name, v in parameters.items() if name not in given}
        values = self.function(h, self.like, temperature=temperature, step_number=number, **given)
        return [self._spread(s, v) if is_by_site(s) else float(v) for s, v in zip(self.wanted, values)]

    def _spread(self, s, value):
        value = torch.as_tensor(value, dtype=torch.float64)
        try:
            return value.expand(self.shape)
        except RuntimeError as error:
            raise RecipeError(
                f"{self.where}, {s}",
                f"its shape is {tuple(value.shape)} for sites of shape {tuple(self.shape)}",
                do="Give a number, or one value per site.",
            ) from error


class _Data(ctypes.Structure):
    """The columns of the data as a kernel reads them: where they are, padded to `wide` numbers for each row and site."""

    _fields_ = [
        ("columns", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("drawn", ctypes.c_int64),
        ("num_data", ctypes.c_double),
    ]

    def __init__(self, tensors, batch_size):
        self.tensors = [
            F.pad(t, (0, -t.shape[1] % (16 if t.shape[1] <= 64 else 64))) if t.dim() > 1 else t for t in tensors
        ]
        self.tensors = [t.contiguous() for t in self.tensors]
        self.pointers = torch.tensor([t.data_ptr() for t in self.tensors], dtype=torch.int64)
        rows = len(tensors[0]) if tensors else 0
        super().__init__(self.pointers.data_ptr(), rows, batch_size or rows, batch_size is not None, rows)


@dataclass
class Trajectory:
    """Chains of a Program on a symbolic energy: `run(steps, ...)` moves them, in place, and returns kept states.

    `state`: dict of tensors by block, float32 or float64 on the CPU. `data`: the columns of an energy that sums over data,
    `(rows,)` or `(rows, sites)`, of which a gradient sees `batch_size` rows, or all; those of a step are a function of the
    seed, the step and the chain. The noise is that of `integrators.noise` under the
    seed: the numbers agree with the torch step up to rounding. Chains that leave the finite numbers or a domain stay at
    their last state; `died` has the step at which they did, -1 for all others. Raises RecipeError where the Program has
    no C++ form, or there is no compiler.
    """

    program: Program
    state: dict[str, torch.Tensor]
    seed: int
    parameters: dict = field(default_factory=dict)
    first_chain: int = 0
    data: tuple[torch.Tensor, ...] = ()
    batch_size: int | None = None

    def __post_init__(self):
        program, recipe = self.program, self.program.recipe
        Key(self.seed, 0, self.first_chain)  # refuses what is none
        self.state = {k: v for k, v in self.state.items() if k == "gradient" or k in {b.name for b in recipe.entries}}
        like = self.state[recipe.targets[0].name]
        check_numbers(f"{recipe.name}, cpp", like, ["cpu"])
        vector = next((self.state[b.name] for b in recipe.entries if b.is_vector), like[:, None])
        self.like, self.sites, self.chains = vector, vector[0].numel(), len(like)
        energy, many = program.energy, self.sites if recipe.target_is_vector else len(recipe.targets)
        if energy is not None and not energy.is_sitewise and len(energy.coordinates) != many or not like.numel():
            raise RecipeError(
                f"{recipe.name}, cpp",
                f"{many} coordinates of {self.chains} chains for an energy of "
                f"{'any number' if energy is None else len(energy.coordinates)}",
                do="Give each coordinate a value.",
            )
        self.by_site = bool(self.data) or self.sites > UNROLLED_SITES
        width = 1 if self.by_site else next((w for w in LANES if self.chains <= w), LANES[-1])
        source = (by_site_source if self.by_site else unrolled_source)(program, self.sites)
        self.padded = -(-self.chains // width) * width
        self.library = library(source, (f"REAL={NUMBER_TYPES[like.dtype]}", f"WIDTH={width}"))
        self.rows_of_data = _Data(self.data, self.batch_size)
        entries = [(b, i) for b in recipe.entries for i in sites_of(b, self.sites)]
        self.rows = {
            name: [r for r, (b, _) in enumerate(entries) if b.name == name] for name in self.state if name != "gradient"
        }
        extra = sum(len(sites_of(b, self.sites)) for b in recipe.targets) if program.carries_gradient else 0
        self.numbers = torch.empty((len(entries) + extra, self.padded), dtype=like.dtype)
        for name, rows in self.rows.items():
            self.numbers[rows, : self.chains] = self.state[name].reshape(self.chains, len(rows)).T
        self.numbers[:, self.chains :] = self.numbers[:, :1]
        self.died = torch.full((self.padded,), -1, dtype=torch.int64)
        self.started = (
            -1 if program.carries_gradient else -2
        )  # the step at whose start a gradient was taken; -2: of none
        given = self.state.get("gradient")
        if program.carries_gradient and given is not None:
            parts = [given[b.name] for b in recipe.targets] if isinstance(given, dict) else [given]
            self.numbers[-extra:, : self.chains] = torch.cat([g.reshape(self.chains, -1).T for g in parts])
            self.started = -2

    def _start(self, first_step):
        """Take the gradient that the first step carries."""
        if self.started == -1:
            integer, self.started = ctypes.c_int64, first_step
            of_data = (
                (
                    integer(self.first_chain),
                    ctypes.c_uint64(first_step),
                    ctypes.c_uint64(self.seed),
                    ctypes.byref(self.rows_of_data),
                )
                if self.by_site
                else ()
            )
            self.library.gradient(_at(self.numbers), integer(self.padded), *of_data)

    @cached_property
    def _constants(self):
        return Constants(self.program, inputs(self.program), self.like.shape[1:])

    def _row(self, h, temperature, number):
        """The constants of one step, each spread over its sites, in one tensor."""
        values = self._constants(h, temperature, number, self.parameters) or [0.0]
        return torch.cat([torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in values])

    def run(self, first_step: int, settings, *, thin: int = 1, first_kept: int = 0, keep=()) -> torch.Tensor:
        """Move by a step for each pair (step size, temperature), which the caller has checked; returns kept states
        (draws, numbers, chains).

        Of the steps every `thin`-th is kept, from number `first_kept` on; `keep`: names of blocks, in whose order the
        numbers of a draw are.
        """
        if thin < 1 or first_kept < 0 or not settings:
            raise RecipeError(
                f"{self.program.recipe.name}, run",
                f"thin = {thin}, first_kept = {first_kept}, {len(settings)} steps",
                do="Keep every thin-th of one step or more.",
            )
        rows, last = [], None
        for k, setting in enumerate(settings):
            if self._constants.changes or setting != last:
                row = self._row(*setting, first_step + k)
            rows.append(row)
            last = setting
        steps, same = len(rows), all(r is rows[0] for r in rows)
        table = rows[0] if same else torch.stack(rows)
        kept = torch.tensor([r for name in keep for r in self.rows[name]], dtype=torch.int64)
        number = max(0, -(-(steps - first_kept) // thin))
        draws = torch.empty((number, len(kept), self.padded), dtype=self.numbers.dtype)
        integer = ctypes.c_int64
        self._start(first_step)
        of_data = (ctypes.byref(self.rows_of_data), integer(self.started)) if self.by_site else ()
        self.library.run(
            _at(self.numbers),
            _at(draws),
            _at(table),
            integer(0 if same else table.shape[1]),
            integer(self.padded),
            integer(self.first_chain),
            integer(steps),
            integer(first_step),
            ctypes.c_uint64(self.seed),
            integer(thin),
            integer(first_kept),
            _at(kept),
            integer(len(kept)),
            _at(self.died),
            *of_data,
        )
        return draws[..., : self.chains]

    def block(self, name: str) -> torch.Tensor:
        """The values of a block as they stand, of its shape."""
        return self.numbers[self.rows[name], : self.chains].T.reshape(self.state[name].shape).contiguous()

    def state_now(self) -> dict:
        """The blocks as they stand, and the gradient that the next step takes over."""
        return {name: self.block(name) for name in self.rows} | self.carried()

    def carried(self) -> dict:
        """The gradient at the state as it stands, where the next step takes it over."""
        if not self.program.carries_gradient or self.started == -1:
            return {}
        rows, found = (
            self.numbers[len(self.numbers) - sum(len(self.rows[b.name]) for b in self.program.recipe.targets) :],
            {},
        )
        for b in self.program.recipe.targets:
            own, rows = rows[: len(self.rows[b.name])], rows[len(self.rows[b.name]) :]
            found[b.name] = own[:, : self.chains].T.reshape(self.state[b.name].shape).contiguous()
        return {"gradient": found if len(found) > 1 else next(iter(found.values()))}
