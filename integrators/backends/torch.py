"""Printing a Program as torch source that a person would have written by hand.

A vector block is `(chains, *shape)`, a scalar block `(chains,)`; parameters are Python floats, or tensors of the
target's shape where they are declared `per` site. Nothing here imports torch: the text does.
"""

import builtins
import keyword

from sympy import Add, Expr, Integer, Mul, Pow, S, Symbol, cse, numbered_symbols
from sympy.core.relational import Relational

from recipe import symbols
from recipe.errors import RecipeError
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block, Parameter, is_site, step_size as h, temperature

from ..flow import MatrixOU, Normal, phi1
from ..lower import Draw, Gradient, Let, Local, Program, Set, Solve, Total

FUNCTIONS = ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
             "erf", "erfc")

PRELUDE = {
    "phi1": '''
def phi1(x):
    """(e^x - 1)/x, and 1 at 0."""
    if not torch.is_tensor(x):
        return math.expm1(x)/x if x else 1.0
    nonzero = torch.where(x == 0, torch.ones_like(x), x)
    return torch.where(x == 0, torch.ones_like(x), torch.expm1(nonzero)/nonzero)
''',
    "sites": '''
def sites(x, like):
    """One value per chain, shaped to meet one value per site."""
    return x.reshape(x.shape + (1,)*(like.dim() - 1))
''',
    "total": '''
def total(x):
    """The sum over the sites of each chain."""
    return x.reshape(len(x), -1).sum(1)
''',
    "matrix_ou": '''
def matrix_ou(size, h, *entries):
    """e^{-Ah}, int_0^h e^{-As} ds and a square root of 2 int_0^h e^{-As} D e^{-A's} ds, entry by entry."""
    numbers = not any(map(torch.is_tensor, entries))
    entries = torch.broadcast_tensors(*(torch.as_tensor(e, dtype=torch.float64) for e in entries))
    A, D = torch.stack(entries, -1).unflatten(-1, (2, size, size)).unbind(-3)
    doublings = max(0, math.ceil(math.log2(max(1e-9, float(A.abs().amax())*size*h))))
    step = h/2**doublings
    zero, one = torch.zeros_like(A), torch.eye(size, dtype=A.dtype, device=A.device).expand_as(A)
    block = lambda *rows: torch.cat([torch.cat(row, -1) for row in rows], -2)
    M, J = torch.matrix_exp(step*block((-A, one), (zero, zero)))[..., :size, :].split(size, -1)
    V = torch.matrix_exp(step*block((-A, 2*D), (zero, A.mT)))[..., :size, size:] @ M.mT
    for _ in range(doublings):
        M, J, V = M @ M, J + M @ J, M @ V @ M.mT + V
    values, vectors = torch.linalg.eigh((V + V.mT)/2)
    L = vectors*values.clamp(min=0).sqrt().unsqueeze(-2)
    solution = torch.stack([M, J, L], -3).flatten(-3).unbind(-1)
    return [float(x) for x in solution] if numbers else solution
''',
}

_TAKEN = {"math", "torch", "state", "gradient", "curvature", "noise", "step", "coefficients", "like", "source", "self",
          *PRELUDE, *keyword.kwlist, *dir(builtins)}


def python_names(program: Program) -> dict[str, str]:
    """A name in the emitted text for each block and parameter: its own, or with _ appended where that one is taken."""
    names = {"h": "h", "T": "temperature"}
    for s in (*program.recipe.state, *program.recipe.parameters):
        name = s.name
        while name in _TAKEN or name in names.values():
            name += "_"
        names[s.name] = name
    return names


class Writer:
    """Expressions as Python text; chain-level factors meet before they are spread over sites."""

    def __init__(self, program: Program):
        self.program, self.names, self.used = program, python_names(program), set()
        self.like = next((self.names[b.name] for b in program.recipe.state if b.is_vector), None)

    def name(self, local: Local) -> str:
        """The text of a local value's name, kept apart from those of blocks and parameters."""
        return local.name + "_" if local.name in _TAKEN or local.name in self.names.values() else local.name

    def level(self, e: Expr) -> str:
        """"site" or "chain" for a tensor with one value per site or chain, else "number"."""
        if is_site(e):
            return "site"
        tensors = any(isinstance(s, (Block, Normal)) or isinstance(s, Local) and not s.is_constant_in_step
                      for s in e.free_symbols)
        return "chain" if tensors else "number"

    def text(self, e: Expr, level: str | None = None) -> str:
        """The expression as text; as one value per site where `level` asks for it."""
        own = self.level(e)
        if level == "site" and own == "chain":
            self.used.add("sites")
            return f"sites({self.text(e)}, {self.like})"
        match e:
            case Normal():
                return f'noise["{e.name}"]'
            case Local():
                return self.name(e)
            case Symbol():
                return self.names[e.name] if e.name in self.names else e.name
            case symbols.Total():
                return "n"
            case _ if e.is_Number:
                return str(int(e)) if e.is_Integer else f"{e.p}/{e.q}" if e.is_Rational else repr(float(e))
            case _ if e.is_NumberSymbol:
                return repr(float(e))
            case Add():
                return self._sum(e, own)
            case Mul():
                return self._product(e, own)
            case Pow():
                return self._power(e)
        return self._call(e, own)

    def _grouped(self, e, own):
        """The arguments as (numbers, chain-level, site-level), the first two joined to meet the third once."""
        levels = [[a for a in e.args if self.level(a) == k] for k in ("number", "chain", "site")]
        return levels if own == "site" else [levels[0], levels[1] + levels[2], []]

    def _sum(self, e, own):
        terms = list(e.as_ordered_terms())
        if own == "site":
            chain = [t for t in terms if self.level(t) == "chain"]
            if len(chain) > 1:
                terms = [t for t in terms if t not in chain] + [Add(*chain)]
        terms.sort(key=lambda t: (not isinstance(t, Block), t.could_extract_minus_sign()))
        text = ""
        for t in terms:
            negative = t.could_extract_minus_sign() and not t.is_Add
            part = self.text(-t if negative else t, own)
            if negative and (-t).is_Add:
                part = f"({part})"
            text += (f" - {part}" if negative else f" + {part}") if text else (f"-{part}" if negative else part)
        return text

    def _product(self, e, own):
        sign, e = ("-", -e) if e.could_extract_minus_sign() else ("", e)
        if not e.is_Mul:
            return sign + self._factor(e, own)
        numbers, chain, site = self._grouped(e, own)
        parts = [self._ratio(numbers)] if numbers else []
        if chain:
            joined = Mul(*chain)
            if site:
                parts.append(self.text(joined, "site"))
            elif len(chain) == 1 and not numbers:
                parts.append(self._factor(joined, own))
            else:
                parts.append(self._ratio(chain))
        if site:
            parts.append(self._ratio(site))
        first, *rest = [p for p in parts if p != "1"] or ["1"]
        return sign + first + "".join(p[1:] if p.startswith("1/") else f"*{p}" for p in rest)

    def _ratio(self, factors):
        """A product of factors of one level, square roots joined and negative powers below the line."""
        factors = sorted(factors, key=lambda f: not getattr(f, "is_constant_in_step", False))
        halves = [f for f in factors if f.is_Pow and abs(f.exp) == S.Half]
        factors = [f for f in factors if f not in halves]
        below = [f for f in factors if f.is_Pow and f.exp.is_Rational and f.exp.is_negative]
        above = [f for f in factors if f not in below]
        top = [self._factor(f) for f in above if not (f.is_Rational and f.p == 1)]
        bottom = [self._factor(1 / f) for f in below]
        for f in above:
            if f.is_Rational and not f.is_Integer:
                top = [t for t in top if t != self._factor(f)]
                top = ([str(f.p)] if f.p != 1 else []) + top
                bottom = [str(f.q)] + bottom
        if halves:
            top.append(self._root(Mul(*(f**2 for f in halves))))
        line = "*".join(top) or "1"
        if not bottom:
            return line
        return f"{line}/{bottom[0]}" if len(bottom) == 1 else f"{line}/({'*'.join(bottom)})"

    def _factor(self, e, own=None):
        text = self.text(e, own)
        return f"({text})" if e.is_Add or e.is_Rational and not e.is_Integer or text.startswith("-") else text

    def _power(self, e):
        if e.exp == S.Half:
            return self._root(e.base)
        if e.exp == -S.Half:
            return f"1/{self._root(e.base)}"
        if e.exp.is_Rational and e.exp.is_negative:
            return self._ratio([e])
        base = self.text(e.base)
        base = f"({base})" if not e.base.is_Atom or base.startswith("-") else base
        exponent = self.text(e.exp)
        return f"{base}**{exponent if e.exp.is_Atom and e.exp.is_nonnegative and not (e.exp.is_Rational and not e.exp.is_Integer) else f'({exponent})'}"

    def _root(self, e):
        return f"{'math' if self.level(e) == 'number' else 'torch'}.sqrt({self.text(e)})"

    def _call(self, e, own):
        name, where = type(e).__name__, f"{self.program.recipe.name}, torch"
        args = [self.text(a, own if own == "site" else None) for a in e.args] if name != "Piecewise" else []
        if name == "phi1":
            self.used.add("phi1")
            return f"phi1({args[0]})"
        if name in FUNCTIONS:
            return f"{'math' if own == 'number' else 'torch'}.{name}({args[0]})"
        if name == "Abs":
            return f"abs({args[0]})"
        if name in ("Max", "Min") and own == "number":
            return f"{name.lower()}({', '.join(args)})"
        if name in ("Max", "Min"):
            bound = "min" if name == "Max" else "max"
            numbers = [t for t, a in zip(args, e.args) if self.level(a) == "number"]
            tensors = [t for t, a in zip(args, e.args) if self.level(a) != "number"]
            text = tensors[0]
            for t in tensors[1:]:
                text = f"torch.{name.lower()}imum({text}, {t})"
            limit = numbers[0] if len(numbers) == 1 else f"{name.lower()}({', '.join(numbers)})"
            return f"torch.clamp({text}, {bound}={limit})" if numbers else text
        if name == "Heaviside":
            return f"torch.heaviside({args[0]}, torch.zeros_like({args[0]}))" if own != "number" else f"float({args[0]} > 0)"
        if name == "sign":
            return f"torch.sign({args[0]})" if own != "number" else f"math.copysign({args[0]} != 0, {args[0]})"
        if name == "Piecewise":
            text = self._tensor(e.args[-1][0], own)
            for value, condition in reversed(e.args[:-1]):
                test = f"{self.text(condition.lhs, own)} {condition.rel_op} {self.text(condition.rhs, own)}"
                chosen = self._tensor(value, own)
                text = f"({chosen} if {test} else {text})" if own == "number" else f"torch.where({test}, {chosen}, {text})"
            return text
        raise RecipeError(where, f"there is no torch lowering for {name}: {e}",
                          do=f"Known functions: {', '.join(FUNCTIONS)}, sqrt, Abs, Max, Min, Piecewise.")

    def _tensor(self, e, own):
        return self.text(e, own)


def energy_source(program: Program, writer: Writer) -> str:
    """The gradient of a symbolic energy, and its Hessian diagonal where it is asked for, as functions of the target."""
    if not program.energy:
        return ""
    parts = [_derivative_source(program, writer, "gradient", program.energy.gradient, "grad U")]
    if program.needs_curvature:
        parts.append(_derivative_source(program, writer, "curvature", program.energy.curvature, "The Hessian diagonal"))
    return "\n".join(parts)


def _derivative_source(program, writer, function, slopes, what):
    energy, targets = program.energy, program.recipe.targets
    local = Writer(program)
    named = {c: c.name + "_" * (c.name in _TAKEN or c.name == "theta") for c in energy.coordinates}
    local.names = {c.name: name for c, name in named.items() if isinstance(c, Block)}
    local.like = "theta"
    if energy.is_sitewise:
        unpack = "theta"
    elif len(targets) > 1:
        unpack = ", ".join(f'theta["{b.name}"]' for b in targets)
    else:
        unpack = "theta.unbind(-1)"
    comma = "," if len(named) == 1 and unpack.endswith("unbind(-1)") else ""
    lines = ["", f"def {function}(theta):", f'    """{what} of U = {energy.U}."""', f"    {', '.join(named.values())}{comma} = {unpack}"]
    sums: dict = {}

    def settle(e):
        if isinstance(e, symbols.Total) and e.integrand is not S.One:
            if e not in sums:
                inside = settle(e.integrand)
                sums[e] = Local(f"sum{len(sums) + 1}")
                local.used.add("total")
                lines.append(f"    {sums[e].name} = total({local.text(inside)})")
            return sums[e]
        return e.func(*map(settle, e.args)) if e.args and e.has(symbols.Total) else e

    values = {c: Local(name) for c, name in named.items() if not isinstance(c, Block)}
    slopes = [settle(g.xreplace(values)) for g in slopes]
    if any(s.has(symbols.Total) for s in slopes):
        lines.append("    n = theta[0].numel()")
    taken = {Symbol(name) for name in named.values()}
    shared, slopes = cse(slopes, symbols=numbered_symbols("u", cls=Symbol, exclude=taken), order="none")
    known: dict = {}
    for s, value in shared:
        value = value.xreplace(known)
        known[s] = Local(s.name, is_site(value), constant=local.level(value) == "number")
        lines.append(f"    {s.name} = {local.text(value)}")
    first, texts = next(iter(named.values())), []
    for s in (s.xreplace(known) for s in slopes):
        number = local.level(s) == "number"
        text = local.text(s, "site" if energy.is_sitewise else None)
        texts.append(f"torch.full_like({first}, {text})" if number else text)
    if energy.is_sitewise:
        result = texts[0]
    elif len(targets) > 1:
        result = "{" + ", ".join(f'"{b.name}": {t}' for b, t in zip(targets, texts)) + "}"
    else:
        result = f"torch.stack([{', '.join(texts)}], -1)"
    writer.used |= local.used
    return "\n".join([*lines, f"    return {result}"]) + "\n"


def step_source(program: Program, writer: Writer, name: str = "step") -> str:
    """The function `step(state, h, *, gradient, noise, ...)` of a Program."""
    recipe, names = program.recipe, writer.names
    statements = [*program.constants, *program.statements]
    used = set().union(*(e.free_symbols for s in statements for e in _expressions(s)))
    parameters = [s for s in recipe.parameters]
    keywords = [names[s.name] + ("" if s.default is None else f"={s.default!r}") for s in parameters]
    asks = [s for s in program.statements if isinstance(s, Gradient)]
    ask = ["gradient" + ("=gradient" if program.energy else "")] if any(s.order == 1 for s in asks) else ["gradient=None"]
    ask += ["curvature" + ("=curvature" if program.energy else "")] if program.needs_curvature else []
    body = [f'"""One step of {recipe.name} by the word {program.scheme}.', "", *_shapes(program), '"""']
    blocks = ", ".join(names[b.name] for b in recipe.state)
    body.append(f"{blocks} = " + ", ".join(f'state["{b.name}"]' for b in recipe.state))
    if any(t.integrand is S.One for s in statements for e in _expressions(s) for t in e.atoms(symbols.Total)):
        body.append(f"n = {writer.like}[0].numel()")
    per = [s for s in parameters if s.per and s in used]
    body += [f"{names[s.name]} = torch.as_tensor({names[s.name]}, dtype=torch.float64, device={writer.like}.device)"
             for s in per]
    for c in program.constants:
        body += _print(c, writer, recipe)
    cast = [names[s.name] for s in per if any(s in e.free_symbols for t in program.statements for e in _expressions(t))]
    cast += [writer.name(c.name) for c in program.constants if isinstance(c, Let) and c.name.is_vector]
    for c in program.constants:
        if isinstance(c, Solve):
            cast += [writer.name(n) for n in c.names] if any(n.is_vector for n in c.names) else []
    if cast:
        body.append(f"{', '.join(cast)} = (x.to({writer.like}.dtype) for x in ({', '.join(cast)},))" if len(cast) > 1
                    else f"{cast[0]} = {cast[0]}.to({writer.like}.dtype)")
    for stage in program.stages:
        if stage.title != "gradient":
            body.append(f"# {stage.title}")
        for statement in stage.statements:
            body += _print(statement, writer, recipe)
    result = ", ".join(f'"{b.name}": {names[b.name]}' for b in recipe.state)
    if program.carries_gradient:
        g = "g" if len(recipe.targets) == 1 else "g"
        result += f', "gradient": {g}'
    body.append(f"return {{{result}}}")
    head = f"def {name}(state, h, *, {', '.join([*ask, 'noise', 'temperature=1.0', *keywords])}):"
    if len(head) > 118:
        head = head.replace(", *, ", ", *,\n" + " " * (len(name) + 5))
    return "\n".join(["", head, *(f"    {line}".rstrip() for line in body)]) + "\n"


def _shapes(program):
    """Lines that tell the shapes of a step's arguments."""
    recipe, shape = program.recipe, lambda b: "(chains, *shape)" if b.is_vector else "(chains,)"
    lines = [f"{b}: {shape(b)}" for b in recipe.state]
    if program.draws:
        lines.append("noise: " + ", ".join(f"{d.name} {shape(d.block)}" for d in program.draws) + ", standard normal")
    given = any(isinstance(s, Gradient) and s.source == "given" for s in program.statements)
    if any(isinstance(s, Gradient) for s in program.statements):
        one = len(recipe.targets) == 1
        at = recipe.targets[0].name if one else "dict of " + ", ".join(b.name for b in recipe.targets)
        kind = f"of the shape of {at}" if one else "a dict of the same blocks"
        lines.append(f"gradient: grad U at the state, {kind}" if given else f"gradient({at}) -> grad U, {kind}")
    if program.needs_curvature:
        lines.append(f"curvature({recipe.targets[0].name}) -> the Hessian diagonal of U, in the same shape")
    return [*lines, "h: the step size, in units of time; U is on the sum scale"]


def _expressions(statement):
    match statement:
        case Let(_, e) | Set(_, e) | Total(_, e):
            return (e,)
        case Solve(_, entries):
            return entries[0].args[4:]
    return ()


def _print(statement, writer, recipe):
    text, several = writer.text, len(recipe.targets) > 1
    at = writer.names[recipe.targets[0].name] if not several else (
        "{" + ", ".join(f'"{b.name}": {writer.names[b.name]}' for b in recipe.targets) + "}")
    match statement:
        case Let(name, value):
            return [f"{writer.name(name)} = {text(value, 'site' if name.is_vector else None)}"]
        case Set(block, value):
            return [f"{writer.names[block.name]} = {text(value, 'site' if block.is_vector else None)}"]
        case Total(name, integrand):
            writer.used.add("total")
            return [f"{writer.name(name)} = total({text(integrand)})"]
        case Solve(names, entries):
            writer.used.add("matrix_ou")
            size, *arguments = entries[0].args[3:]
            targets = ", ".join(map(writer.name, names))
            return [f"{targets} = matrix_ou({size}, {', '.join(text(a) for a in arguments)})"]
        case Gradient(names, source, order):
            function, name = ("gradient", "g") if order == 1 else ("curvature", "c")
            value = {"evaluated": f"{function}({at})", "given": f"{function}",
                     "carried": f'state["{function}"] if "{function}" in state else {function}({at})'}[source]
            lines = [f"{name} = {value}"]
            return lines + [f"{writer.name(g)} = {name}[\"{b.name}\"]" for b, g in names] if several else lines
        case Draw():
            return []


def module_source(program: Program, *, title: str) -> str:
    """The whole text of a step: what it needs, the gradient of a symbolic energy, and the step."""
    writer = Writer(program)
    step = step_source(program, writer)
    gradient = energy_source(program, writer)
    prelude = "\n".join(PRELUDE[name] for name in PRELUDE if name in writer.used)
    return "\n".join([f'"""{title}"""', "", "import math", "", "import torch", ""]) + "\n".join(
        part for part in (prelude, gradient, step) if part)


def standalone_source(program: Program, rotated: Program | None, flows) -> str:
    """One file with the derivation as its docstring, the step, and an Optimizer class where the word allows one."""
    recipe, writer = program.recipe, Writer(program)
    title = "\n".join([str(recipe), "", f"One step of {program.scheme}:", *(f"  {flow}" for flow in flows)])
    parts = [step_source(program, writer)]
    if program.energy:
        parts.insert(0, energy_source(program, writer))
    if rotated and len(recipe.targets) == 1:
        advance = Writer(rotated)
        parts += [step_source(rotated, advance, "advance"), optimizer_source(rotated, advance)]
        writer.used |= advance.used
    parts = [PRELUDE[name] for name in PRELUDE if name in writer.used] + parts
    return "\n".join(['"""' + title.replace("\\", "/"), '"""', "", "import math", "", "import torch", ""]) + "\n".join(parts)


def optimizer_source(program: Program, writer: Writer) -> str:
    """A torch.optim.Optimizer around `advance`, the rotation of the word that starts right after the gradient."""
    recipe, names = program.recipe, writer.names
    means = {g.block: g.mean for g in eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)[0]}
    starts = []
    for b in recipe.momenta + recipe.thermostats:
        mean = means.get(b, S.Zero)
        known = all(isinstance(s, Parameter) and not s.per for s in mean.free_symbols) and not mean.has(symbols.Total)
        mean = mean.xreplace({s: Local(f'group["{names[s.name]}"]', constant=True) for s in mean.free_symbols}) if known else S.Zero
        like = "theta" if b.is_vector else "theta[:, 0]"
        starts.append(f'                    "{b.name}": torch.full_like({like}, {writer.text(mean)}),')
    draws = ", ".join(f'"{d.name}": normal(theta{"" if d.block.is_vector else "[:, 0]"})' for d in program.draws)
    arguments = [names[s.name] for s in recipe.parameters]
    fixed = ", ".join(["step_size=step_size", "num_data=num_data", "temperature=temperature", *(f"{a}={a}" for a in arguments)])
    passed = "".join(f', {a}=group["{a}"]' for a in ["temperature", *arguments])
    required = [names[s.name] for s in recipe.parameters if s.default is None]
    head = ", ".join(["self", "params", "step_size", *required, "num_data=1", "temperature=1.0", "seed=0",
                      *(f"{names[s.name]}={s.default!r}" for s in recipe.parameters if s.default is not None)])
    return f'''
class Optimizer(torch.optim.Optimizer):
    """{recipe.name} in a training loop: after loss.backward(), step() moves the parameters of each group as one vector.

    The gradient of the potential is num_data times the gradient of the loss: num_data is 1 for a loss on the sum
    scale, the number of data for a mean loss. step_size is the h of the step, in units of time.
    """

    def __init__({head}):
        super().__init__(params, dict({fixed}))
        self.seed, self.generators = seed, {{}}

    def generator(self, device):
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if not moving:
                continue
            theta = torch.cat([p.reshape(-1) for p in moving])[None]
            gradient = group["num_data"]*torch.cat([p.grad.reshape(-1) for p in moving])[None]
            normal = lambda like: torch.randn(like.shape, generator=self.generator(like.device), dtype=like.dtype,
                                              device=like.device)
            kept = self.state[moving[0]]
            if not kept:
                kept.update({{
{chr(10).join(starts) or "                    "}
                }})
            state = {{**kept, "{recipe.targets[0].name}": theta}}
            state = advance(state, group["step_size"], gradient=gradient, noise={{{draws}}}{passed})
            kept.update({{name: value for name, value in state.items() if name != "{recipe.targets[0].name}"}})
            sizes = [p.numel() for p in moving]
            for p, value in zip(moving, state["{recipe.targets[0].name}"][0].split(sizes)):
                p.copy_(value.view_as(p))
        return loss
'''
