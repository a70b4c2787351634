"""The one exception of the project."""

import difflib


class RecipeError(ValueError):
    """Something a user asked for cannot be done: where, what, and what to do instead.

    >>> print(RecipeError("sgnht, split", "no piece takes the noise of p", do="Add noise(p) to a piece."))
    sgnht, split: no piece takes the noise of p. Add noise(p) to a piece.
    """

    def __init__(self, where: str, what: str, *, do: str = ""):
        self.where, self.what, self.do = where, what, do
        super().__init__(f"{where}: {what}." + (f" {do}" if do else ""))

    def __reduce__(self):
        return _again, (type(self), self.where, self.what, self.do)


def _again(kind, where, what, do):
    return kind(where, what, do=do)


def did_you_mean(name: str, known) -> str:
    """A hint that names the closest known name, or lists the known ones.

    >>> did_you_mean("gama", ["gamma", "mu"])
    "Did you mean 'gamma'?"
    """
    known = sorted(map(str, known))
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known here: {', '.join(known) or 'nothing'}."
