"""The table of a summary, which is printed with all of its columns."""

import pandas

ROWS = 60  # that are printed; of more, the first and the last
SHORTENED = 20  # rows of a table of more
FORMS = {"ess_bulk": " {:.0f}", "ess_tail": " {:.0f}", "r_hat": " {:.3f}"}


class Summary(pandas.DataFrame):
    """A pandas.DataFrame that prints every column, to four digits; of more than sixty rows the first and last ten.

    >>> print(Summary({"mean": [0.123456], "ess_bulk": [12345.6], "r_hat": [1.00123]}, index=["theta"]))
             mean ess_bulk  r_hat
    theta  0.1235    12346  1.001
    """

    @property
    def _constructor(self) -> type:
        """What parts of the table are, as pandas asks."""
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
