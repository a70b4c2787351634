"""The stock samplers, one short file each; `catalogue` has them by name, and imports a file on first use."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from recipe import Recipe
from recipe.declaration import check_recipe
from recipe.errors import RecipeError, did_you_mean

_FILES = {  # name of the recipe: its file, and the Python name
    "mala": ("mala", "MALA"),
    "sgld": ("sgld", "SGLD"),
    "sgld-preconditioned": ("sgld_preconditioned", "PreconditionedSGLD"),
    "psgld": ("psgld", "PSGLD"),
    "psgld-same-step": ("psgld", "PSGLDSameStep"),
    "psgld-gamma": ("psgld", "PSGLDGamma"),
    "sgrld": ("sgrld", "SGRLD"),
    "sgrld-dense": ("sgrld_dense", "SGRLDDense"),
    "sgrld-simplex": ("sgrld_simplex", "SGRLDSimplex"),
    "sgrld-cir": ("sgrld_cir", "SGRLDCIR"),
    "sgfs": ("sgfs", "SGFS"),
    "vsgd": ("vsgd", "VSGD"),
    "isgd-ideal": ("isgd", "ISGDIdeal"),
    "isgd": ("isgd", "ISGD"),
    "underdamped-langevin": ("underdamped_langevin", "UnderdampedLangevin"),
    "sghmc": ("sghmc", "SGHMC"),
    "sghmc-adaptive": ("sghmc_adaptive", "AdaptiveSGHMC"),
    "sgrhmc": ("sgrhmc", "SGRHMC"),
    "sghmc-relativistic": ("sghmc_relativistic", "RelativisticSGHMC"),
    "hmc": ("hmc", "HMC"),
    "hmc-randomised": ("hmc_randomised", "RandomisedHMC"),
    "ghmc": ("ghmc", "GHMC"),
    "sgnht": ("sgnht", "SGNHT"),
    "msgnht": ("msgnht", "MSGNHT"),
    "atmc": ("atmc", "ATMC"),
    "atmc-relativistic": ("atmc_relativistic", "RelativisticATMC"),
    "santa": ("santa", "SANTA"),
    "sgld-sa": ("sgld_sa", "SGLDSA"),
    "sgld-sa-marginal": ("sgld_sa", "SGLDSAMarginal"),
    "sgld-sa-gibbs": ("sgld_sa", "SGLDSAGibbs"),
    "sgld-sa-classification": ("sgld_sa", "SGLDSAClassification"),
    "sgld-sa-classification-marginal": ("sgld_sa", "SGLDSAClassificationMarginal"),
    "sgld-sa-classification-gibbs": ("sgld_sa", "SGLDSAClassificationGibbs"),
    "sghmc-sa": ("sghmc_sa", "SGHMCSA"),
    "sghmc-sa-marginal": ("sghmc_sa", "SGHMCSAMarginal"),
    "sghmc-sa-gibbs": ("sghmc_sa", "SGHMCSAGibbs"),
    "sghmc-sa-classification": ("sghmc_sa", "SGHMCSAClassification"),
    "sghmc-sa-classification-marginal": ("sghmc_sa", "SGHMCSAClassificationMarginal"),
    "sghmc-sa-classification-gibbs": ("sghmc_sa", "SGHMCSAClassificationGibbs"),
}


class Catalogue(Mapping[str, Recipe]):
    """The stock samplers by the names of their recipes, in the order of the families.

    >>> catalogue["sghmc"].name, "sghmc" in catalogue
    ('sghmc', True)
    """

    def __getitem__(self, name: str) -> Recipe:
        file, attribute = _FILES[name]
        return getattr(import_module(f"{__name__}.{file}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)

    def __repr__(self) -> str:
        return f"catalogue of {', '.join(self)}"

    def __contains__(self, name: object) -> bool:
        return name in _FILES


catalogue = Catalogue()
_NAMES = {attribute: name for name, (_, attribute) in _FILES.items()}
_LOWER = {known.lower(): name for known, name in [*_NAMES.items(), *((name, name) for name in _FILES)]}
__all__ = ["Catalogue", "catalogue", "recipe_of"]


def recipe_of(recipe: Recipe | str, where: str, *, most: int = 3) -> Recipe:
    """The stock sampler of a recipe's or a Python object's name, in any case; a Recipe is returned itself.

    Raises RecipeError for other objects, and for an unknown name, with the nearest names, `most` at most.

    >>> recipe_of("sghmc", "doctest") is recipe_of("SGHMC", "doctest") is catalogue["sghmc"]
    True
    >>> recipe_of("sghmcc", "doctest")
    Traceback (most recent call last):
    recipe.errors.RecipeError: doctest: there is no stock sampler 'sghmcc'. Did you mean 'sghmc' or 'sgrhmc' or 'ghmc'?
    """
    if not isinstance(recipe, str):
        check_recipe(where, recipe)
        return recipe
    name = _LOWER.get(recipe.strip().lower().replace("_", "-"))
    if name is None:
        what = "there is no stock sampler of this name" if where == recipe else f"there is no stock sampler {recipe!r}"
        raise RecipeError(where, what, do=did_you_mean(recipe.lower(), catalogue, most=most))
    return catalogue[name]


def __getattr__(name: str) -> Recipe:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return catalogue[_NAMES[name]]
