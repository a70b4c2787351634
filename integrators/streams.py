"""Every use of noise by its name, with its part of the counter space (step, draw, chain): no two meet under one seed.

Each use has draws of its own; what counts its steps is said with it. The draws of steps and batches are used by more
runs than one, each of which has steps of its own. So a use that is added here is disjoint from all others if its draw
is.
"""

# Draws
STEP = range(0x8000)  # the random numbers of a step, in the order of its Program
SWAG_DIAGONAL = 0x8000  # normals of the samples of a fit, one step
SWAG_LOW_RANK = 0x8001
ORDER = 0x8002  # the order of the data in an epoch of training
NETWORK = 0x8003  # the seeds of the networks of an ensemble, one step
POINT = 0x8004  # the seeds of starts that are drawn from a law, by block
SPREAD = 0x8005  # what is added to starts that are spread out, by block
RAY = 0x8006  # directions from the start in which an energy is tried, by block
REFERENCE = 0x8007  # where annealing starts, by part of the reference
JITTER = 0xEFFE  # step sizes of annealing, by step
EXCHANGE = 0xEFFF  # exchanges of temperatures, by step
BATCH = range(0xFFFE, EXCHANGE, -1)  # the rows of the minibatches of a step, in the order of its gradients
START = 0xFFFF  # auxiliary blocks of a start, by draw of their law

# Steps that have the draws STEP and BATCH
RUN = range(2**41)  # of chains, annealed ones too, and of training
PAIR = range(2**41, 2**42)  # of the pairs of chains by which draws are judged
STRETCH = range(2**42, 2**43)  # of the stretches backwards in time, likewise
SLOPE = range(2**43, 2**44)  # of the gradients at draws, one step each

# Chains
RUNG = 2**24  # of one temperature, where several run side by side
GROUP = 2**20  # of one group of parameters in training


def seed_of(seed: int, number: int) -> int:
    """The seed of pilot run 1, 2, ... of a tuner, or of the generator that draws the start of chain 0, 1, ...

    They are multiples of an odd number apart, so that their low halves differ, by which `noise` tells seeds apart.
    """
    return (seed + number * 0x9E3779B97F4A7C15) % 2**63
