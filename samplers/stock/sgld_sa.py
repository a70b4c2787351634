"""SGLD-SA. Deng, Zhang, Liang & Lin (2019), Algorithm 1: SGLD for weights under a spike-and-slab prior.

The modes and the latents are those of spike_and_slab.py. Seen once, as 1.5 with variance 0.3, a weight of v0 = 0.01,
v1 = 4, delta = 0.4 and sigma = 1 has the mean 1.178; the averages of "sa" lock it into the spike, at 0.053.
T = 1/tau, where the paper calls the inverse temperature tau.
"""

from recipe import Recipe

from .spike_and_slab import MODES, name_of, w


def sgld_sa(mode: str = "sa", regression: bool = True) -> Recipe:
    """SGLD-SA in a mode; for a regression U is half the squared residuals, else -log likelihood."""
    prior = MODES[mode](regression)
    return Recipe(
        name=name_of("sgld-sa", mode, regression),
        source="Deng et al. 2019, Algorithm 1",
        state=(w, *prior.latents),
        target=w,
        H=prior.E,
        D={w: 1},
        scheme="J Euler" if prior.latents else "Euler",
        doc=__doc__,
        **prior.fields,
    )


SGLDSA, SGLDSAMarginal, SGLDSAGibbs = map(sgld_sa, MODES)
SGLDSAClassification, SGLDSAClassificationMarginal, SGLDSAClassificationGibbs = (
    sgld_sa(mode, regression=False) for mode in MODES
)
