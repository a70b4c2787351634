"""Uses of noise by name, with disjoint parts of the counter space (step, draw, chain) under one seed.

Each use has draws of its own; its comment names the index that counts its steps. Several kinds of runs share the draws
STEP and BATCH, each with steps of its own. A new use is disjoint from all others if its draw is new.
"""

# Draws
STEP = range(0x8000)  # the random numbers of a step, in the order of its Program
SWAG_DIAGONAL = 0x8000  # normals of the samples of a fit, one step
SWAG_LOW_RANK = 0x8001
ORDER = 0x8002  # the order of the data in an epoch of training
NETWORK = 0x8003  # the seeds of the networks of an ensemble, one step
POINT = 0x8004  # the seeds of starts that are drawn from a law, by block
SPREAD = 0x8005  # displacements of spread-out starts, by block
RAY = 0x8006  # directions from the start in which an energy is tried, by block
REFERENCE = 0x8007  # draws of the reference of annealing, by part of the reference
PREDICTED = 0x8008  # the seeds of data at draws of a model, step 0, and of draws of its prior, step 1
JITTER = 0xEFFE  # step sizes of annealing, by step
EXCHANGE = 0xEFFF  # exchanges of temperatures, by step
BATCH = range(0xFFFE, EXCHANGE, -1)  # the rows of the minibatches of a step, in the order of its gradients
START = 0xFFFF  # auxiliary blocks of a start, by draw of their law

# Steps with the draws STEP and BATCH
RUN = range(2**41)  # steps of chains, annealed ones too, and of training
PAIR = range(2**41, 2**42)  # steps of the pairs of chains that measure accuracy
STRETCH = range(2**42, 2**43)  # steps of the stretches backwards in time that measure accuracy
SLOPE = range(2**43, 2**44)  # gradients at draws, one step each

# Chains
RUNG = 2**24  # chains per temperature, if several temperatures run side by side
GROUP = 2**20  # chains per group of parameters in training


def seed_of(seed: int, number: int) -> int:
    """The seed of pilot run 1, 2, ... of a tuner, or of the generator that draws the start of chain 0, 1, ...

    Seeds differ by multiples of an odd number, so that their low halves differ, as `noise` requires.
    """
    return (seed + number * 0x9E3779B97F4A7C15) % 2**63
