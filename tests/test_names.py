"""Names: whatever a user calls a thing, every text runs and gives the numbers of plain names, or the name is refused.

Recipes are written with drawn names in every role, and compared with the same recipe under plain names.
"""

import ast
import builtins
import inspect
import keyword
import re
import subprocess
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from covering import EVERY_MECHANISM, covering
from devices import device_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sympy import Symbol
from zoo import GENERALISED_LANGEVIN, JOINT

import integrators
import samplers
from integrators.backends.cpp_sweep import PRELUDE
from integrators.backends.kernel_writer import ENDING, Names
from integrators.backends.loading import load
from integrators.backends.template import FOLDER
from integrators.backends.torch_expressions import TAKEN, python_names
from integrators.kernels import native
from integrators.kernels.trajectory import Trajectory
from integrators.noise import Key
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    data_total,
    datum,
    grad,
    observe,
    positive,
    potential,
    scalar,
    total,
    vector,
)
from recipe.pieces import force, friction, noise
from samplers.testing.cases import CASES
from samplers.training.optimizer import BOOKKEPT

# ---- names that texts have of their own

HEADERS = "cmath cstdint climits cfloat cstdlib cstring math.h stdint.h omp.h".split()
OF_CPP = """alignas alignof and asm auto bool break case catch char char8_t class compl const const_cast constexpr
    continue decltype default delete do double else enum explicit export extern float for friend goto if inline int
    long mutable namespace new noexcept not nullptr operator or private protected public register requires restrict
    return short signed sizeof static static_assert static_cast struct switch template this thread_local throw try
    typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor std main int64_t
    size_t exp log sin cos sqrt div abs y0 y1 j0 jn gamma signgam index time clock""".split()
OF_TORCH = "like step self math torch state theta data rows kept moving group params h n total sites slope g c".split()
ENDINGS = "_ __ _0 _1 1 2 _s0 _s1 _r0 _r1 _from _to _per _noise _sum _new1 0".split()


@cache
def macros():
    """The macros that a kernel's text meets, of its own headers and of others."""
    command = native.compiler().command
    includes = "".join(f"#include <{header}>\n" for header in HEADERS) + PRELUDE
    run = [*command, *native.FLAGS[:4], "-fopenmp", "-dM", "-E", "-x", "c++", "-"]
    text = subprocess.run(run, input=includes, capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"#define ([A-Za-z]\w*)", text)))


@cache
def words_of_the_text():
    """The words of templates and preludes of kernels, those apart that a writer completes."""
    files = [
        *FOLDER.glob("*.hpp"),
        *FOLDER.glob("*.cpp.in"),
        *FOLDER.glob("triton*"),
        FOLDER.parent / "triton_prelude.py",
    ]
    text = " ".join(file.read_text() for file in files)
    return sorted(set(re.findall(r"[A-Za-z_]\w*", re.sub(r"\w*\$\w+", "", text))))


def names():
    """Names of other things, names beside those of other roles, and any that Python takes."""
    known = [*macros(), *keyword.kwlist, *keyword.softkwlist, *dir(builtins), *OF_CPP, *words_of_the_text()]
    beside = st.builds(str.__add__, st.sampled_from([*ROLES, "M", "M_PI", *OF_TORCH]), st.sampled_from(["", *ENDINGS]))
    anything = st.from_regex(r"[^\W\d]\w{0,12}", fullmatch=True).filter(str.isidentifier)
    return st.one_of(st.sampled_from(known), beside, st.sampled_from(OF_TORCH), anything)


# ---- a recipe that has every role

BLOCKS = ("theta", "p", "xi", "V", "W")
PARAMETERS = ("a", "b", "m", *(f"k{i}" for i in range(6)))
LETTERS = ("A", "B", "O", "C")
COORDINATES = ("x", "y", "z")
OF_ENERGY = ("q", "column", "label")
ROLES = (*BLOCKS, *PARAMETERS, "seen", *LETTERS, "recipe", *COORDINATES, *OF_ENERGY)
PLAIN = dict(zip(ROLES, ROLES))
ARGUMENTS = {*inspect.signature(samplers.Optimizer.__init__).parameters, *BOOKKEPT}


def recipe_of(name, observes):
    """A thermostat with a mass per site, adapted quantities, and many parameters."""
    theta, p, xi = vector(name["theta"]), vector(name["p"]), scalar(name["xi"])
    U, n = potential(theta), total(1)
    a, m = positive(name["a"], default=0.7), positive(name["m"], default=1.6)
    b = positive(name["b"], default=1.2, per=theta)
    others = [positive(name[f"k{i}"], default=0.1 * i, per=theta if i % 3 == 1 else None) for i in range(1, 6)]
    V = adapted(name["V"], like=theta, start=grad(U) ** 2, domain="nonnegative")
    W = adapted(name["W"], start=1, domain="positive")
    change = observe(name["seen"]) ** 2 if observes else positive(name["k0"], default=0.3)
    return Recipe(
        name=name["recipe"],
        state=(theta, p, xi),
        H=U + total(b * p**2) / 2 + n * m * xi**2 / 2,
        D={p: a * (1 + V / (1 + V)) + W + sum(others)},
        Q={(theta, p): -1, (p, xi): p / (n * m)},
        adapt={V: V / 2 + grad(U) ** 2 / 2, W: W / 2 + change / 2},
        pieces={name["A"]: theta, name["B"]: force(p), name["O"]: friction(p) + noise(p), name["C"]: xi},
        scheme="{B} {A} {C} {O} {C} {A} {B}".format(**name),
    )


def state_of(name, sites, device="cpu"):
    """A state of two chains, by the names of the blocks."""
    at = torch.linspace(-1, 1.5, 2 * sites, dtype=torch.float64, device=device).reshape(2, sites)
    values = {"theta": at, "p": at.flip(1) + 0.3, "xi": at[:, 0] / 2, "V": at**2, "W": at[:, 1] ** 2 + 0.2}
    return {name[role]: value.contiguous() for role, value in values.items()}


def by_role(name, state):
    """The numbers of a state in the order of the roles."""
    return torch.cat([state[name[role]].detach().cpu().reshape(-1) for role in BLOCKS])


def gradient(theta):
    return theta**3 + 0.3 * theta.flip(-1)


def seen(theta):
    return theta.square().mean(-1)


@cache
def _step(names_of_roles, observes, energy):
    return integrators.compile(recipe_of(dict(names_of_roles), observes), energy=energy)


def step_of(name, *, observes=False, energy=None, backend="torch"):
    """The step of the recipe under these names, solved once for all backends."""
    return replace(_step(tuple(name.items()), observes, energy), backend=backend)


def stepped(name, backend):
    """Two steps of a gradient and an observation that are the caller's."""
    step = step_of(name, observes=True, backend=backend)
    device = device_of(backend)
    state = state_of(name, 6, device)
    per_site = torch.linspace(0.8, 1.4, 6, dtype=torch.float64, device=device)
    given = {name["a"]: 0.9, name["b"]: per_site, name["k2"]: 0.4}
    for k in range(2):
        functions = {"gradient": gradient, "observe": {name["seen"]: seen}}
        state = step(state, 0.1, noise=Key(3, k), temperature=1.2, **functions, **given)
    return by_role(name, state)


def moved(name, sites, backend):
    """Three steps on a symbolic energy, of coordinates of any name or of a block."""
    x, y, z = (Symbol(name[c], real=True) for c in COORDINATES)
    energy = Energy((x, y, z), U=(1 - x) ** 2 + (y - x**2) ** 2 + (x * y + z) ** 2 / 2)
    if sites > len(COORDINATES):
        q = vector(name["q"])
        energy = Energy(q, U=total(q**4) / 4 + total(q) ** 2 / total(1))
    step = step_of(name, energy=energy)
    state = state_of(name, sites)
    if backend == "cpp":
        chains = Trajectory(step.program, {b: x.cpu() for b, x in state.items()}, seed=3, parameters={name["a"]: 0.9})
        chains.run(0, [(0.1, 1.2)] * 3)
        return by_role(name, chains.state_now())
    for k in range(3):
        state = step(state, 0.1, noise=Key(3, k), temperature=1.2, **{name["a"]: 0.9})
    return by_role(name, state)


def sampled(name, backend):
    """Draws on data, whose columns bear names too."""
    q, (column, label) = vector(name["q"]), (datum(name["column"], per=vector(name["q"])), datum(name["label"]))
    energy = Energy(q, U=data_total((label - total(column * q)) ** 2) / 2 + total(q**2) / 2, data=(column, label))
    X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3).sin()
    run = {"init": torch.zeros(3, dtype=torch.float64), "chains": 2, "steps": 4, "step_size": 0.02, "progress": False}
    return samplers.sample(samplers.SGLD, energy, data=(X, X.sum(1)), batch_size=4, backend=backend, **run)["theta"]


def optimized(make, observed):
    """What two steps without noise make of weights."""
    weights = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    optimizer = make([weights])
    for _ in range(2):
        optimizer.zero_grad()
        (weights**4).sum().backward()
        optimizer.step(observe=observed)
    return weights.detach()


def by_standalone(name):
    """By the class of the standalone file, whose observations are functions."""
    made = load(step_of(name, observes=True).standalone(), "standalone")["Optimizer"]
    return optimized(partial(made, step_size=0.1, temperature=0.0), {name["seen"]: seen})


def by_optimizer(name, backend):
    """By samplers.Optimizer, whose observations are numbers; parameters of the names of its arguments are refused."""
    made = partial(samplers.Optimizer, step_size=0.1, num_data=1, temperature=0.0, backend=backend)
    recipe = step_of(name, observes=True).recipe
    known = {s.name for s in recipe.parameters}
    refused = [role for role in PARAMETERS if name[role] in ARGUMENTS & known]
    if refused:
        with pytest.raises(RecipeError, match="bears the name of an argument"):
            made([torch.ones(1, requires_grad=True)], recipe)
        recipe = step_of(name | {role: role for role in refused}, observes=True).recipe
    return optimized(lambda params: made(params, recipe), {name["seen"]: torch.tensor([0.7], dtype=torch.float64)})


TEXTS = {
    "torch": lambda name: stepped(name, "torch"),
    "C++": lambda name: stepped(name, "cpp"),
    "Triton": lambda name: stepped(name, "triton"),
    "torch on coordinates": lambda name: moved(name, 3, "torch"),
    "C++ on coordinates": lambda name: moved(name, 3, "cpp"),
    "torch on sites": lambda name: moved(name, 5, "torch"),
    "C++ on sites": lambda name: moved(name, 5, "cpp"),
    "torch on many sites": lambda name: moved(name, 70, "torch"),
    "C++ on many sites": lambda name: moved(name, 70, "cpp"),
    "torch on data": lambda name: sampled(name, "torch"),
    "C++ on data": lambda name: sampled(name, "cpp"),
    "standalone": by_standalone,
    "Optimizer in torch": lambda name: by_optimizer(name, "torch"),
    "Optimizer in C++": lambda name: by_optimizer(name, "cpp"),
}


@cache
def expected(text):
    """What its text in torch gives under plain names."""
    return TEXTS[text.replace("C++", "torch").replace("Triton", "torch")](PLAIN)


REFUSALS = "a name is a letter followed by|is a keyword of Python|this name is taken|is no name of a piece"


def is_refused(role, name):
    """Whether nothing of this role may have this name, for a reason that is said."""
    theta = vector("theta")
    declared = {"name": "plain", "state": theta, "H": potential(theta), "D": {theta: 1}}
    if role in COORDINATES:
        return False
    try:
        if role in LETTERS:
            Recipe(**declared, pieces={name: theta})
        elif role == "recipe":
            Recipe(**declared | {"name": name})
        else:
            scalar(name)
    except RecipeError as error:
        assert re.search(REFUSALS, str(error)), error
        return True
    return False


def named(drawn):
    """These names by role, or plain ones where a name is refused."""
    name = dict(PLAIN)
    for role, wanted in zip(ROLES, drawn):
        if wanted not in PLAIN and not is_refused(role, wanted):
            name[role] = wanted
    return name


def check(drawn):
    """Every text under these names."""
    name = named(drawn)
    for text, run in TEXTS.items():
        error = (run(name) - expected(text)).abs().max()
        assert error <= 1e-12, (text, name)


HARD = {
    "names of C++": """M_ FP_ MATH_ math_ M_00 like step self NULL RAND_MAX BIG_ENDIAN INT8_MAX M_PI key supply I EOF c
    errno index lambda assert isnan stdin r signbit""".split(),
    "names of the text": """p1 p len decay_p sum1 seed params loss group moving kept normal draw gradient_ closure
    generator generators super dict print torch math u0 theta_ lr p_""".split(),
}


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("text", ["torch", "standalone", "C++ on coordinates"])
def test_hard_names_have_the_numbers_of_plain_ones(kind, text):
    name = named(HARD[kind])
    assert list(name.values()) == HARD[kind]  # none is refused
    assert (TEXTS[text](name) - expected(text)).abs().max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("kind", HARD)
def test_hard_names_in_every_role_and_printer(kind):
    check(HARD[kind])


@pytest.mark.slow
@settings(max_examples=1000 // len(ROLES) + 1, deadline=None, database=None, phases=[Phase.generate])
@given(st.lists(names(), min_size=len(ROLES), max_size=len(ROLES), unique=True))
def test_a_thousand_names_in_every_role_and_printer(drawn):
    check(drawn)


# ---- what the fuzz rests on


def test_no_header_knows_a_name_of_a_kernel():
    """The preprocessor leaves every name as it is, made of a macro or a keyword, with every ending."""
    endings = ["", "s0", "s12", "r3", "from", "to", "per", "noise", "sum"]
    assert all(not e or re.fullmatch(ENDING, e) for e in endings)
    stems = [Names().stem(Symbol(macro)) for macro in [*macros(), *OF_CPP]]
    text = "\n".join(f"{stem}{ending}" for stem in stems for ending in endings)
    includes = "".join(f"#include <{header}>\n" for header in HEADERS) + PRELUDE
    command = native.compiler().command
    run = [*command, *native.FLAGS[:4], "-fopenmp", "-DREAL=double", "-DWIDTH=16", "-E", "-P", "-x", "c++", "-"]
    mark = "where_the_names_begin"
    out = subprocess.run(run, input=f"{includes}\n{mark}\n{text}\n", capture_output=True, text=True, check=True).stdout
    assert out.split(mark)[1].split() == text.split()
    assert len(stems) > 300


def test_the_fixed_text_of_a_kernel_has_no_such_names():
    ours = re.compile(rf"\w*_{ENDING}?")
    assert [word for word in words_of_the_text() if ours.fullmatch(word) and not word.startswith("_")] == []
    assert not [word for word in OF_CPP if ours.fullmatch(word)]


def test_names_and_their_endings_meet_nowhere():
    names_of_kernel = Names()
    symbols = [vector(n) for n in ("x", "x_", "x_s0", "x_from", "x__", "x_s0_")]
    stems = list(map(names_of_kernel.stem, symbols))
    spelled = [stem + ending for stem in stems for ending in ("", "s0", "from")]
    assert len(set(spelled)) == len(spelled)


@pytest.mark.parametrize("name", covering(CASES, EVERY_MECHANISM))
def test_the_words_of_a_text_are_kept_from_its_names(name):
    """What an emitted function reads beside the user's names and its own values is taken."""
    step = integrators.compile(CASES[name].recipe)
    given_names = set(python_names(step.program).values())
    for text in (step.source, step.standalone()):
        functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
        for function in (f for f in functions if f.name in ("step", "advance", "begin")):
            words = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
            set_here = {x.id for x in words if isinstance(x.ctx, ast.Store)}
            arguments = {x.arg for x in [*function.args.args, *function.args.kwonlyargs]}
            own = ({x.id for x in words} - set_here | arguments) - given_names
            assert own <= TAKEN


# ---- names that met in one before


MATRIX_LAW = replace(GENERALISED_LANGEVIN, pieces=JOINT, scheme="B A O A B")


def test_a_law_of_matrices_runs_in_kernels():
    """Its constants are called M_00, which a kernel's names once never came to an end of."""
    recipe, bowl = MATRIX_LAW, Energy(vector("theta"), U=total(vector("theta") ** 4) / 4)
    assert "M_00" in integrators.compile(recipe).source
    run = {"init": torch.zeros(3, dtype=torch.float64), "chains": 3, "steps": 20, "step_size": 0.2, "progress": False}
    draws = [samplers.sample(recipe, bowl, backend=backend, **run)["theta"] for backend in ("torch", "cpp")]
    assert (draws[0] - draws[1]).abs().max() <= 1e-12 and draws[0].std() > 0.1
    weights = []
    for backend in ("torch", "cpp"):
        weights.append(torch.ones(5, dtype=torch.float64, requires_grad=True))
        optimizer = samplers.Optimizer([weights[-1]], recipe, step_size=0.1, num_data=10, backend=backend)
        for _ in range(3):
            optimizer.zero_grad()
            (weights[-1] ** 2).mean().backward()
            optimizer.step()
    assert (weights[0] - weights[1]).abs().max() <= 1e-12


@pytest.mark.parametrize("blocks", [("p", "p1", "p_1"), ("x", "x1", "x11"), ("x", "x_", "x_1")])
def test_no_two_draws_bear_one_name(blocks):
    theta, (p, *others) = vector("theta"), map(vector, blocks)
    recipe = Recipe(
        name="draws",
        state=(theta, p, *others),
        H=potential(theta) + total(sum(b**2 for b in (p, *others))) / 2,
        D={b: 1 for b in (p, *others)},
        Q={(theta, p): -1},
        pieces={"A": theta, "B": force(p), "O": friction(p) + noise(p), "R": tuple(others)},
        scheme="O A B A R O",
    )
    step = integrators.compile(recipe)
    assert len(step.draws) == len(step.program.draws) == 4


@pytest.mark.parametrize("other", ["sum1", "lambda_", "theta_", "u0", "n"])
def test_coordinates_that_are_renamed_stay_apart(other):
    """lambda is written lambda_, which may be another one's name; sums and shared parts have names as well."""
    x, y = Symbol("lambda", real=True), Symbol(other, real=True)
    energy = Energy((x, y), U=(x**2 + 3 * y**2) ** 2)
    step = integrators.compile(samplers.SGLD, energy=energy)
    at = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    expected = at * torch.tensor([4.0, 12.0], dtype=torch.float64) * (at[:, :1] ** 2 + 3 * at[:, 1:] ** 2)
    assert (step.namespace["gradient"](at) - expected).abs().max() <= 1e-12
    q = vector(other if other != "n" else "sum2")
    on_sites = Energy(q, U=total(q**2) ** 2)
    step = integrators.compile(samplers.SGLD, energy=on_sites)
    assert (step.namespace["gradient"](at) - 4 * at * (at**2).sum()).abs().max() <= 1e-12


def test_a_column_or_coordinate_of_data_does_not_become_code():
    x, y = Symbol('x"""\nraise SystemExit\n"""', real=True), datum("r")
    energy = Energy((x,), U=data_total((x - y) ** 2) / 2, data=y)
    run = {"init": torch.zeros(1, dtype=torch.float64), "chains": 2, "steps": 3, "step_size": 0.1, "progress": False}
    rows = torch.linspace(0, 1, 5, dtype=torch.float64)
    draws = [
        samplers.sample(samplers.SGLD, energy, data=rows, backend=backend, **run)["theta"]
        for backend in ("torch", "cpp")
    ]
    assert (draws[0] - draws[1]).abs().max() <= 1e-12


def test_a_word_over_several_lines_stays_in_its_comment():
    step = integrators.compile(MATRIX_LAW, "B A\nO A B", backend="cpp")
    state = {name: torch.ones(2, 3, dtype=torch.float64) for name in ("theta", "p", "s")}
    assert step(state, 0.1, gradient=lambda theta: theta, noise=Key(0, 0))["theta"].isfinite().all()
