"""False alarms of the audit over right samplers of all kinds: `python tests/false_alarms.py` prints a table."""

import sys
from collections import Counter
from typing import NamedTuple

from black_boxes import RIGHT, ghmc, hidden, mala, splitting, thermostat, ula, unseen

from samplers.testing import audit

MORE = {
    "ghmc": (ghmc(), {}),
    "aboba": (splitting("ABOBA"), {}),
    "obabo": (splitting("OBABO"), {}),
    "baoab, noise of numpy": (splitting("BAOAB", normals=unseen), {}),
    "ula, noise of numpy": (ula(normals=unseen), {}),
    "ula, half the step": (ula(), dict(step_size=0.05)),
    "ula, not followed": (hidden(ula()), {}),
    "a strong friction": (splitting("BAOAB", 5.0), dict(time=20.0)),
    "sgnht, hotter": (thermostat(), dict(time=8.0, temperatures=(1.0, 2.0))),
    "mala, as exact": (mala(), dict(exact=True)),
    "ghmc, as exact": (ghmc(), dict(exact=True)),
}


class Row(NamedTuple):
    """An audit of a right sampler."""

    name: str
    seed: int
    verdict: str
    ok: bool | None


def audited(seeds: int = 5, chains: int = 8000) -> list[Row]:
    """The audits of all right samplers, with some seeds each."""
    samplers = {name: row[:2] for name, row in RIGHT.items()} | MORE
    rows = []
    for name, (run, settings) in samplers.items():
        for seed in range(seeds):
            result = audit(run, seed=seed, progress=False, **{"time": 4.0, **settings, "chains": chains})
            rows.append(Row(name, seed, result.verdict, result.ok))
    return rows


if __name__ == "__main__":
    found = audited(*map(int, sys.argv[1:]))
    for row in found:
        print(row.name, row.seed, row.verdict, row.ok, sep=", ", flush=True)
    print(Counter(row.ok for row in found))
