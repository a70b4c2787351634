"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`.

`import samplers` is light: a name is imported when it is first asked for. The names are those of `__init__.pyi`.
"""

from lazy_loader import attach_stub

from recipe import __version__ as __version__

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
