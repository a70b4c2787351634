"""The Kullback-Leibler divergence of the law of draws from exp(-H/T), in nats."""

from dataclasses import dataclass

WILD = 40.0  # times the KL: ten times the variance of the work of a stretch that all but forgets its start


@dataclass(frozen=True)
class KLDivergence:
    """The Kullback-Leibler divergence KL(law || exp(-H/T)) of all blocks, with its standard error, to leading order.

    `value` is None where the divergence is unknown, for the `reason`. It comes from stretches of `steps` steps of
    `chains` chains, whose work over T has the `variance`; `settled`: whether longer stretches give the same; `lost`:
    the number of chains that left the finite numbers.

    >>> print(KLDivergence(0.005, 0.0005, chains=1000, steps=50))
    KL(draws || exp(-H/T)) = 0.005 +- 0.0005: so no probability is off by more than 0.055 (Pinsker).
    >>> print(KLDivergence(None, 0.0, reason="there is no work"))
    KL(draws || exp(-H/T)) is not stated: there is no work.
    >>> print(KLDivergence(2.6e10, 1e9))
    KL(draws || exp(-H/T)) is not stated: it is above 2 or not seen to be below, where it bounds no probability.
    """

    value: float | None
    error: float
    chains: int = 0
    steps: int = 0
    variance: float = 0.0
    lost: int = 0
    settled: bool = True
    reason: str = ""

    @property
    def bound(self) -> float:
        """Pinsker's bound of the error of any probability, sqrt(KL/2), at a KL two errors larger."""
        return min(1.0, ((max(self.value or 0.0, 0.0) + 2 * self.error) / 2) ** 0.5)

    @property
    def doubts(self) -> list[str]:
        """Reasons not to believe the value."""
        doubts = []
        if not self.settled:
            doubts.append(f"The KL has not settled in stretches of {self.steps} steps: pass more steps.")
        if self.variance > max(1.0, WILD * abs(self.value or 0.0)):
            doubts.append(
                f"The work of a stretch over T has the variance {self.variance:.2g}, too much for the KL: "
                "take a smaller step size, or a palindrome with one O in the middle or one at each end."
            )
        if self.lost:
            doubts.append(f"{self.lost} of the chains of the KL are lost: take a smaller step size.")
        return doubts

    def __str__(self) -> str:
        name = "KL(draws || exp(-H/T))"
        if self.value is None:
            return f"{name} is not stated: {self.reason}."
        if self.bound == 1:
            return f"{name} is not stated: it is above 2 or not seen to be below, where it bounds no probability."
        figure = f"{self.value:.2g} +- {self.error:.1g}"
        return f"{name} = {figure}: so no probability is off by more than {self.bound:.2g} (Pinsker)."
