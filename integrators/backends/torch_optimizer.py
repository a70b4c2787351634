"""Printing a torch.optim.Optimizer around the step that starts right after a gradient."""

import textwrap

from sympy import S

from recipe import symbols
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block, num_data, step_number

from ..program import Local, Program
from .torch_expressions import Writer


def optimizer_source(program: Program, start: Program, writer: Writer) -> str:
    """A torch.optim.Optimizer around `advance`, the rotation of the word that starts right after the gradient."""
    recipe, names = program.recipe, writer.names
    target = recipe.targets[0].name
    number = _like_a_number(writer)
    draws = ", ".join(f'"{d.name}": draw("{d.kind}", {"theta" if d.is_vector else number})' for d in program.draws)
    arguments = [names[s.name] for s in recipe.parameters]
    rate = (
        ["lr", "momentum"]
        if any(s.name == "momentum" for e in recipe.learning_rate.values() for s in e.free_symbols)
        else ["lr"]
    )
    own = ["step_size", *rate, "num_data", "weight_decay", "temperature"]
    passed = lambda called: (
        ', temperature=group["temperature"]'
        + ', num_data=group["num_data"]' * called.reads(num_data)
        + ', step_number=kept["step_number"]' * called.reads(step_number)
        + ", sizes=sizes" * writer.by_tensor
        + ", observe=observe" * bool(called.observations)
        + ", **parameters" * bool(arguments)
    )
    observe = ", observe=None" if program.observations or start.observations else ""
    begin = (
        f"""
                kept.update(begin({{**kept, "{target}": theta}}, h, gradient=gradient, noise={{}}{passed(start)}))
                kept.pop("{target}")"""
        if recipe.adapted
        else ""
    )
    seen = "\n    step takes observe: functions of theta (1, sites), by name." * bool(observe)
    starts, later = _starts(program, writer)
    begin += "".join(f"\n{line}" for line in later)
    defaults = ["lr=None", "momentum=0.9"][: len(rate)] + [
        "num_data=1",
        "weight_decay=0.0",
        "temperature=1.0",
        "seed=0",
    ]
    required = [names[s.name] for s in recipe.parameters if s.default is None]
    head = ", ".join(
        [
            "self",
            "params",
            "*",
            "step_size=None",
            *required,
            *defaults,
            *(f"{names[s.name]}={s.default!r}" for s in recipe.parameters if s.default is not None),
        ]
    )
    return f'''{_settings_source(recipe, writer, rate)}


class Optimizer(torch.optim.Optimizer):
    """{recipe.name} in a training loop: after loss.backward(), step() moves the parameters of each group as one vector.

    The potential is num_data times the loss: num_data is 1 for a loss on the sum scale, the number of data for a mean
    loss. weight_decay adds num_data*weight_decay*theta**2/2, a Gaussian prior. {" and ".join(rate)} are as for torch.optim.SGD on
    that loss; step_size, the h of the step in units of time, may be given in place of lr, which schedulers need.{seen}
    """

{_wrapped(f"    def __init__({head}):")}
{_wrapped(f"        super().__init__(params, dict({', '.join(f'{a}={a}' for a in own + arguments)}))")}
        self.seed, self.generators = seed, {{}}

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        settings(group)
        if len({{(p.dtype, p.device) for p in group["params"]}}) > 1:
            raise ValueError("the tensors of a group differ in dtype or device: give each kind a group of its own")

    def generator(self, device):
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def draw(self, kind, like):
        generator, options = self.generator(like.device), dict(dtype=like.dtype, device=like.device)
        return {{"normal": lambda: torch.randn(like.shape, generator=generator, **options),
                "uniform": lambda: torch.rand(like.shape, generator=generator, **options),
                "poisson": lambda: lambda rate: torch.poisson(rate, generator),
                "gamma": lambda: lambda shape: torch._standard_gamma(shape, generator)}}[kind]()

    def noise_state(self):
        return {{"seed": self.seed, "states": {{str(device): g.get_state() for device, g in self.generators.items()}}}}

    def set_noise_state(self, noise):
        self.seed, self.generators = noise["seed"], {{}}
        for device, state in noise["states"].items():
            self.generator(torch.device(device)).set_state(state.cpu())

    def state_dict(self):
        return {{**super().state_dict(), "noise": self.noise_state()}}

    def load_state_dict(self, state_dict):
        super().load_state_dict({{name: value for name, value in state_dict.items() if name != "noise"}})
        self.set_noise_state(state_dict["noise"])

    def __getstate__(self):
        return {{**super().__getstate__(), "noise": self.noise_state()}}

    def __setstate__(self, state):
        super().__setstate__({{name: value for name, value in state.items() if name != "noise"}})
        if "noise" in state:
            self.set_noise_state(state["noise"])

    @torch.no_grad()
    def step(self, closure=None{observe}):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [k for k, p in enumerate(group["params"]) if p.grad is not None]
            if not moving or group["lr"] == 0:
                continue
            h, parameters = settings(group)
            params = [group["params"][k] for k in moving]
            theta = torch.cat([p.reshape(-1) for p in params])[None]
            slope = torch.cat([p.grad.reshape(-1) for p in params])[None]
            gradient = group["num_data"]*(slope + group["weight_decay"]*theta)
            sizes = [p.numel() for p in params]
            kept, draw = self.state[group["params"][0]], self.draw
            if kept and kept["moving"] != moving:
                raise RuntimeError("other parameters have a gradient than in the first step: give each its own group")
            if not kept:
                kept.update({{
{chr(10).join(starts)}
                }}){begin}
            state = {{**kept, "{target}": theta}}
            state = advance(state, h, gradient=gradient, noise={{{draws}}}{passed(program)})
            kept.update({{name: value for name, value in state.items() if name != "{target}"}})
            kept["step_number"] += 1
            for p, value in zip(params, state["{target}"][0].split(sizes)):
                p.copy_(value.view_as(p))
        return loss
'''


def _wrapped(line):
    """A call over as many lines as it needs, each from its first bracket on."""
    return "\n".join(
        textwrap.wrap(
            line, 118, subsequent_indent=" " * (line.index("(", line.index("__init__")) + 1), break_long_words=False
        )
    )


def _settings_source(recipe, writer, rate):
    """The function that reads the step size and parameters of a group, as they are given or from lr and momentum."""
    of_group = lambda name: f'group["{name}"]'
    pairs = lambda values: ", ".join(f'"{name}": {value}' for name, value in values.items())
    names, told = {s: writer.names[s.name] for s in recipe.parameters}, " and ".join(rate)
    numbers = {name: Local(name, constant=True) for name in (*rate, "num_data")}
    for name, local in numbers.items():
        writer.rename(local, name)
    formulas = {
        s: writer.text(e.xreplace({x: numbers[x.name] for x in e.free_symbols}))
        for s, e in recipe.learning_rate.items()
    }
    found = {names[s]: text for s, text in formulas.items() if s != symbols.step_size}
    lines = [
        "def settings(group):",
        f'    """The step size and parameters of a group, as they are given or from {told}."""',
        '    h, lr, num_data = group["step_size"], group["lr"], group["num_data"]',
        f"    parameters = {{{pairs({name: of_group(name) for name in names.values()})}}}",
        "    if (lr is None) == (h is None):",
        f'        raise ValueError("give {told}, or step_size")',
        '    if not (num_data > 0 and group["weight_decay"] >= 0 and 0 <= (h if lr is None else lr) < math.inf):',
        '        raise ValueError("num_data is a positive number, weight_decay, lr and step_size are none below 0")',
        "    if not lr:",
        "        return h, parameters",
    ]
    if found:
        default = {names[s]: s.default for s in recipe.parameters}
        differs = " or ".join(f"{of_group(name)} != {default[name]!r}" for name in found)
        other, follow = ", ".join(found), "follow" if len(found) > 1 else "follows"
        lines += [
            f"    if {differs}:",
            f'        raise ValueError("{other} {follow} from {told}: give step_size and {other}, or neither")',
        ]
    if len(rate) > 1:
        lines += [
            '    momentum = group["momentum"]',
            "    if not 0 <= momentum < 1:",
            '        raise ValueError("momentum is a number from 0 to 1")',
        ]
    lines += [
        f"    return {formulas[symbols.step_size]}, " + (f"{{**parameters, {pairs(found)}}}" if found else "parameters")
    ]
    return "\n".join(lines)


def _like_a_number(writer):
    """A tensor of the shape of a scalar block."""
    return "theta[:, :len(sizes)]" if writer.by_tensor else "theta[:, 0]"


def _starts(program, writer):
    """Lines of a dict: the first value of every auxiliary block, and a place for every adapted quantity.

    The values that follow from adapted quantities come apart, as lines of text for once these are begun.
    """
    recipe, names = program.recipe, writer.names
    means = {g.block: g.mean for g in eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)[0]}
    given = {s: Local(f'parameters["{names[s.name]}"]', constant=True) for s in recipe.parameters}
    given[num_data] = Local('group["num_data"]', constant=True)
    begun = {a: Local(f'kept["{a.name}"]', a.is_vector) for a in recipe.adapted}
    lines, later = [], []
    for b in recipe.entries:
        if b in recipe.targets:
            continue
        start = means.get(b, S.One if b.domain == "positive" else S.Zero)
        if start.has(symbols.Total) or any(
            getattr(s, "per", None) or isinstance(s, Block) and s not in begun for s in start.free_symbols
        ):
            start = S.Zero
        if start.free_symbols & begun.keys():
            later.append(f'                kept["{b.name}"] = {writer.text(start.xreplace(given | begun))}')
            start = S.Zero
        start = start.xreplace(given)
        like = "theta" if b.is_vector else _like_a_number(writer)
        value = writer.text(start)
        lines.append(
            f'                    "{b.name}": {value},'
            if writer.level(start) == "site"
            else f'                    "{b.name}": torch.full_like({like}, {value}),'
        )
    return [*lines, '                    "step_number": 0,', '                    "moving": moving,'], later
