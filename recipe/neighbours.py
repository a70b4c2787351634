"""The three packages of the distribution, whose names other distributions and a user's own files may bear, too."""

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("recipe", "integrators", "samplers")
MARK = "# a package of sde-recipe"


def refuse_strangers() -> None:
    """Refuses packages of these names that do not lie beside this one, or whose first file is not ours.

    Raises ImportError, which names the other file and says what to do.
    """
    folder = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        if file.resolve() != folder / name / "__init__.py":
            what = f"{file} takes the place of our package {name}, which lies in {folder}"
            raise ImportError(f"sde-recipe: {what}. Rename that file, or start Python in another folder.")
        if MARK not in file.read_text("utf-8", "replace"):
            what = f"another distribution has written over {file}"
            raise ImportError(f"sde-recipe: {what}. Install sde-recipe again, in an environment without the other one.")


refuse_strangers()
