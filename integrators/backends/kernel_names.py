"""Names in kernels: one for every symbol of a Program, apart from those of the languages and of the fixed text."""

import re
from collections.abc import Callable

from sympy import Symbol

from ..passes import is_by_site
from ..variates import Variate
from .cpp import PRELUDE
from .kernel_expressions import CPP

# of C++, and what its compilers take beside them
_KEYWORDS = """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const constexpr continue
    decltype default delete do double else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not nullptr operator or private protected public register requires return short
    signed sizeof static struct switch template this throw true try typedef typeid typename union unsigned using
    virtual void volatile wchar_t while xor and_eq not_eq or_eq xor_eq static_assert static_cast const_cast
    dynamic_cast reinterpret_cast thread_local char8_t char16_t char32_t consteval constinit co_await co_return
    co_yield main unix linux
""".split()
_MACROS = "REAL WIDTH NAN INFINITY HUGE_VAL HUGE_VALF HUGE_VALL".split()
# of the fixed text in C++
_IN_CPP = """
    R S W ROWS BLOCK TILE WIDE Data Sweep a at b batch before c chain chains choose chosen columns constants count
    data derivative_1 derivative_2 died draws everything first first_chain first_step given gradient group i item j k
    kept l left lost m n number_kept numbers ok out p part row rows run s seed site started state std step steps
    stride sum sum_of_all thin tile w weight who
""".split()
# of the fixed text in Triton
_IN_TRITON = """
    tl triton zero size mask spot block group items parts key sums drawn per_site sites part_sites part_offset
    item_part item_block array_in array_out number_in number_out GROUPS GIVEN words unit pair normals uniforms
    total_of power_of
""".split()
# macros, types, and names with an ending of the writers'
_RESERVED = re.compile(r"(M_|FP_|MATH_|math_).*|u?int\d+_t|.*_(\d+|from|to|per|buffer|sum)")
_OF_THE_PRELUDE = re.findall(r"\b([A-Za-z_]\w*)[(<]", PRELUDE)
_TAKEN = {*_KEYWORDS, *_MACROS, *_IN_CPP, *_IN_TRITON, *_OF_THE_PRELUDE, *CPP.calls}


class Names:
    """A name in a kernel for every symbol of a Program.

    >>> from recipe import scalar, vector
    >>> names = Names()
    >>> names.stem(vector("theta")), names.stem(scalar("double"))
    ('theta', 'double_')
    """

    def __init__(self) -> None:
        self._stems: dict[Symbol, str] = {}

    def stem(self, s: Symbol) -> str:
        """The name of a scalar, or what the names of a vector's sites begin with."""
        if s not in self._stems:
            stem = f"n_{s.name}" if isinstance(s, Variate) else s.name
            while stem in _TAKEN or stem in self._stems.values() or _RESERVED.fullmatch(stem):
                stem += "_"
            self._stems[s] = stem
        return self._stems[s]

    def at(self, site: int) -> Callable[[Symbol], str]:
        """The names at a site where each site has its own, as a function of the symbol; l is the lane of the chain."""

        def name(s: Symbol) -> str:
            if isinstance(s, Variate):
                return f"{self.stem(s)}[{site if s.is_vector else 0}][l]"
            return f"{self.stem(s)}_{site}" if is_by_site(s) else self.stem(s)

        return name
