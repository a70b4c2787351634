"""The layers of the formulas: whether exp(-H) is the law of the SDE, and the emitted text that of the flows."""

import sympy

from ..check_results import Result, Results
from ..generator import BOUND
from ..interpreter import flow_by_flow
from ..random_calls import by_oracle, called, inputs, worst
from ..subject import Subject


def symbolic(subject: Subject) -> Results:
    """Checks the Fokker-Planck residual of the drift that the step discretises, and the findings of the certificate."""
    rest = subject.sde.residual()
    terms = 0 if rest == 0 else len(sympy.Add.make_args(rest))
    yield Result(
        "symbolic",
        "terms of the Fokker-Planck residual",
        float(terms),
        0.0,
        f"-div(f rho) + sum_ij d_i d_j (D_ij rho) = 0, but it is rho times {rest}",
    )
    if rest == 0:
        failed = subject.certificate.failures
        answers = "; ".join(f"{f.question}: {f.answer}" for f in failed)
        yield Result("symbolic", "failed findings of the certificate", float(len(failed)), 0.0, answers)
    return None


def generator(subject: Subject) -> Results:
    """Checks E[L phi] = 0 for monomials phi of degree 1 to 4 of the features, with L of the discretised SDE."""
    if subject.unresolved:
        return subject.unresolved
    for name in subject.energies:
        defects = subject.laws[name].defects(subject.sde)
        phi, defect = max(defects.items(), key=lambda item: abs(item[1]))
        yield Result(
            "generator",
            f"largest |E[L phi]| of its terms, of {phi}",
            abs(defect),
            BOUND,
            "E[f . grad phi + T D : hess phi] = 0 under exp(-H/T)",
            subject=name,
        )
    return None


def differential(subject: Subject) -> Results:
    """Compares the emitted step, adapting, with its flows one by one on the same noise, at several shapes of sites."""
    step = subject.live
    shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2)) if step.recipe.target_is_vector else ((),)
    shapes = shapes[bool(step.recipe.spheres) :]  # a sphere has more than one site
    for shape in shapes:
        at = inputs(step, 32, shape)
        yield Result(
            "differential",
            f"error against the flows one by one, {len(shape)} axes",
            worst(called(step, *at), by_oracle(flow_by_flow, step, *at)),
            1e-11,
            "the emitted text is the formulas of its flows",
            subject=str(step.scheme),
        )
    return None
