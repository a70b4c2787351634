"""The layer of the text: does the emitted step compute the formulas of its flows?"""

from ..arguments import by_oracle, called, inputs, worst
from ..interpreter import flow_by_flow, interpret
from ..results import Result, Results
from ..subject import Subject


def differential(subject: Subject) -> Results:
    """The emitted step against two interpreters on the same noise, adapting, at several sites."""
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
