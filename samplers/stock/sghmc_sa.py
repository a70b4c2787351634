"""SGHMC-SA. Deng, Zhang, Liang & Lin (2019), eq. (2), sections 3.3 and 4.2: SGHMC under a spike-and-slab prior.

As SGLD-SA, with a momentum. The paper's noise (2C - eps B)/tau is right for tau = 1 only: the gradient's share,
`supplied` here, does not scale with the temperature.
"""

from recipe import Recipe, euler, nonnegative, positive, total, vector

from .spike_and_slab import MODES, name_of, w

p = vector("p")
C = positive("C", default=1.0, doc="friction, mass per unit of time")
B = nonnegative("B", default=0.0, doc="the part of C that the gradient noise supplies, h V_g/2")
m = positive("m", default=1.0, doc="mass")


def sghmc_sa(mode: str = "sa", regression: bool = True) -> Recipe:
    """SGHMC-SA in a mode; for a regression U is half the squared residuals, else -log likelihood."""
    prior = MODES[mode](regression)
    return Recipe(
        name=name_of("sghmc-sa", mode, regression),
        source="Deng et al. 2019, eq. (2), sections 3.3 and 4.2",
        state=(w, p, *prior.latents),
        target=w,
        H=prior.E + total(p**2) / (2 * m),
        D={p: C},
        Q={(w, p): -1},
        supplied={p: B},
        pieces={"G": euler(p)},
        scheme="J B A O A B J" if prior.latents else "B A O A B",
        schemes={} if prior.latents else {"paper": "A G"},
        doc=__doc__,
        **prior.fields,
    )


SGHMCSA, SGHMCSAMarginal, SGHMCSAGibbs = map(sghmc_sa, MODES)
SGHMCSAClassification, SGHMCSAClassificationMarginal, SGHMCSAClassificationGibbs = (
    sghmc_sa(mode, regression=False) for mode in MODES
)
