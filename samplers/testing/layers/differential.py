"""The layer of the text: whether the emitted step computes the formulas of its flows."""

from ..arguments import by_oracle, called, inputs, worst
from ..interpreter import flow_by_flow, interpret
from ..results import Result, Results
from ..subject import Subject


def differential(subject: Subject) -> Results:
    """Compares the emitted step, adapting, with two interpreters on the same noise, at several shapes of sites."""
    step = subject.live
    shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2)) if step.recipe.target_is_vector else ((),)
    for shape in shapes:
        at = inputs(step, 32, shape)
        result = called(step, *at)
        for oracle in (interpret, flow_by_flow):
            yield Result(
                "differential",
                f"error against {oracle.__name__}, {len(shape)} axes",
                worst(result, by_oracle(oracle, step, *at)),
                1e-11,
                "the emitted text is the formulas of its flows",
                subject=str(step.scheme),
            )
    return None
