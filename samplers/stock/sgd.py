"""Conversion of torch.optim.SGD's lr and momentum for a sampler with momenta of mass 1 and friction rate gamma.

At temperature 0, with the thermostat at rest, the sampler's weights equal SGD's; x = gamma h, lr/N on the sum scale:

    O, in palindromes such as "B A O A B":   momentum = e^-x,    lr/N = h^2 (1 + momentum)/2;
    F, friction with the force, "F A":       momentum = e^-x,    lr/N = h^2 (1 - momentum)/x;
    G, Euler's step of both, "G A":          momentum = 1 - x,   lr/N = h^2.

In O and F momentum = 0 is an infinite friction, and is refused; G allows momentum = 0.

A thermostat of mass mu, dxi = (p^2 - 1)/mu dt, is given mu = 10/gamma^2. Linearised, the energy of the momenta and the
thermostat relax at the rates r of r^2 - 2 gamma r + 2/mu = 0: the slower one is 0.106 gamma, so that a thermostat takes
some 9.5 times as many steps as the momenta, about 9.5/(1 - momentum), for every lr and number of data.
"""

from sympy import Expr, Symbol, log, sqrt

from recipe import fraction, num_data, positive, step_size

MOMENTUM = fraction("momentum")
SQUARE = positive("lr") / num_data  # h^2 where the kick and the drift are whole


SLOWER = 10  # mu gamma^2, about the relaxation time of a thermostat over that of the momenta


def conversions_of_sgd(
    letters: str, friction: Symbol, mass: Symbol | None = None, thermostat: Symbol | None = None
) -> dict[str, dict[Symbol, Expr]]:
    """The conversions "lr, momentum" of some letters; the one of O serves all words without a letter of their own.

    `letters` is a selection of "OFG"; `friction` the parameter that is the friction rate at mass 1; `mass` the
    parameter of the mass, `thermostat` the parameter of a thermostat's mass, where there is one.

    >>> gamma = positive("gamma")
    >>> conversions_of_sgd("G", gamma)
    {'lr, momentum; G': {h: sqrt(lr)/sqrt(num_data), gamma: sqrt(num_data)*(1 - momentum)/sqrt(lr)}}
    """
    decay = -log(MOMENTUM)
    times = {
        "O": sqrt(2 * SQUARE / (1 + MOMENTUM)),
        "F": sqrt(decay * SQUARE / (1 - MOMENTUM)),
        "G": sqrt(SQUARE),
    }
    shares = {"O": decay, "F": decay, "G": 1 - MOMENTUM}
    return {
        "lr, momentum" if letter == "O" else f"lr, momentum; {letter}": {
            step_size: times[letter],
            friction: shares[letter] / times[letter],
            **({} if mass is None else {mass: 1}),
            **({} if thermostat is None else {thermostat: SLOWER * (times[letter] / shares[letter]) ** 2}),
        }
        for letter in letters
    }
