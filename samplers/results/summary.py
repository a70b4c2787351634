"""The table of a summary, printed with all of its columns."""

from collections.abc import Mapping

import numpy as np
import pandas
import torch

from . import statistics

MASS = 0.94  # of the interval of highest density
ROWS = 60  # that are printed; of more, the first and the last
SHORTENED = 20  # rows of a table of more
FORMS = {"ess_bulk": " {:.0f}", "ess_tail": " {:.0f}", "r_hat": " {:.3f}"}


class Summary(pandas.DataFrame):
    """A pandas.DataFrame that prints every column, to four digits; of more than sixty rows the first and last ten.

    >>> print(Summary({"mean": [0.123456], "ess_bulk": [12345.6], "r_hat": [1.00123]}, index=["theta"]))
             mean ess_bulk  r_hat
    theta  0.1235    12346  1.001
    """

    @classmethod
    def of(cls, draws: Mapping[str, torch.Tensor], weights: torch.Tensor | None = None) -> "Summary":
        """Moments, interval, errors and convergence of every component of `(chains, draws, *shape)`, by name.

        `weights`: of the draws, `(chains, draws)`, None where all are equal; R-hat is of the draws as they are.
        """
        labels = [label for name, x in draws.items() for label in statistics.labels(name, x.shape[2:])]
        columns = [_columns(x, weights) for x in draws.values()]
        return cls({name: np.concatenate([c[name].flatten().numpy() for c in columns]) for name in columns[0]}, labels)

    @property
    def _constructor(self) -> type:
        """The class of parts of the table, for pandas."""
        return Summary

    def __repr__(self) -> str:
        return self.text(rows=ROWS)

    def text(self, rows: int | None = None) -> str:
        """The table as text, of more than so many rows the first and the last ones."""
        return self.to_string(
            formatters={name: FORMS[name].format for name in self.columns if name in FORMS},
            float_format=" {:.4g}".format,
            max_rows=rows,
            min_rows=SHORTENED,
            show_dimensions="truncate",
        )


def _columns(draws: torch.Tensor, weights: torch.Tensor | None) -> dict[str, torch.Tensor]:
    x = draws.detach().to("cpu", torch.float64)
    mean, sd = statistics.moments(x, weights)
    errors = statistics.errors_of_moments(x, statistics.sample_sizes_of_moments(x, weights), weights)
    tail = 100 * (1 - MASS) / 2
    low, high = statistics.highest_density(x, MASS, weights)
    return {
        "mean": mean,
        "sd": sd,
        f"hdi_{tail:g}%": low,
        f"hdi_{100 - tail:g}%": high,
        "mcse_mean": errors[0],
        "mcse_sd": errors[1],
        "ess_bulk": statistics.sample_size_of_ranks(x, weights),
        "ess_tail": statistics.sample_size_of_tails(x, weights),
        "r_hat": statistics.split_r_hat(x),
    }
