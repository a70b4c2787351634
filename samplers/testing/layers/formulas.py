"""The layers of the formulas: whether exp(-H) is the law of the SDE that the step discretises."""

import sympy

from ..generator import BOUND
from ..results import Result, Results
from ..subject import Subject


def symbolic(subject: Subject) -> Results:
    """Checks the Fokker-Planck residual of the drift that the step discretises, and the findings of the certificate."""
    recipe = subject.wrong or subject.recipe
    rest = recipe.residual()
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
    sde = subject.wrong or subject.recipe
    if subject.unresolved:
        return subject.unresolved
    for name in subject.energies:
        defects = subject.stationary.defects(sde, subject.energy(name))
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
