"""Optimizer form of a step: a Program for a training loop, which hands in one gradient per step."""

from collections.abc import Mapping
from dataclasses import replace

from sympy import Expr, Symbol

from recipe import Recipe
from recipe.errors import RecipeError
from recipe.scheme import Scheme
from recipe.symbols import Adapted, num_data

from .flow import Flow, reads_U
from .lower import lower
from .program import Gradient, Let, Local, Program, Stage, rewritten


def optimizer_form(
    recipe: Recipe,
    scheme: Scheme,
    flows: Mapping[str, Flow],
    adapt: Mapping[Adapted, Expr] | None = None,
    scope: str = "chain",
    *,
    value: bool = False,
) -> Program:
    """The Program of a training loop: the cyclic rotation of the word that starts right after its one gradient.

    `value`: whether the loop hands in U beside its gradient, for formulas that read U. Raises RecipeError if the word
    needs more than one gradient per step, or gradients of several potentials.
    """
    where = f"{recipe.name}, optimizer form"
    if recipe.has_several_potentials:
        names = ", ".join(U.symbol for U in recipe.potentials)
        what = f"H has {names}, and a training loop hands in the gradient of one loss, at one point of a step"
        do = "Declare one potential for the sum of the losses, or give samplers.sample an energy for each."
        raise RecipeError(where, what, do=do)
    reads_value = reads_U((adapt or {}).values(), 0) or any(flow.reads(0) for flow in flows.values())
    if reads_value and not value:
        what = "its formulas read U itself, and here there are gradients alone"
        raise RecipeError(where, what, do="Use samplers.Optimizer, or samplers.sample.")
    semigroups = [letter for letter, flow in flows.items() if flow.exact]
    for k in range(len(scheme.moves)):
        rotated = scheme.rotated(k).merged(semigroups)
        first = flows[rotated.moves[0][0]]
        if not (first.reads_gradient or first.reads(0)):
            continue
        program = lower(recipe, rotated, flows, given_gradient=True, adapt=adapt, scope=scope, value=reads_value)
        if all(s.source == "given" for s in program.gradients):
            return program
    what = f"the word {scheme} needs more than one gradient per step"
    raise RecipeError(where, what, do="Choose a word with one, such as 'B A O A B' or 'F A'.")


def of_the_loss(program: Program, *, prior: bool) -> Program:
    """The optimizer form in terms of the gradient g of a mean loss: grad U = num_data g.

    With a `prior` of precision prior_precision, grad U = num_data g + prior_precision theta. Raises RecipeError if the
    recipe already has a prior_precision.
    """
    ((theta, g),) = program.gradients[0].names
    slope: Expr = num_data * g
    lets: tuple[Let, ...] = ()
    if prior:
        if any(s.name == "prior_precision" for s in program.recipe.symbols):
            where = f"{program.recipe.name}, weight_decay"
            raise RecipeError(where, "the recipe has a prior_precision of its own", do="Use that.")
        name = Local("slope", True)
        lets = (Let(name, slope + Symbol("prior_precision", real=True) * theta),)
        slope = name
    first, *others = program.stages
    stages = [Stage(first.title, (*first.statements, *lets))]
    for stage in others:
        statements = [s if isinstance(s, Gradient) else rewritten(s, {g: slope}) for s in stage.statements]
        stages.append(Stage(stage.title, tuple(statements)))
    return replace(program, stages=tuple(stages))
