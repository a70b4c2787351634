"""Stated errors are as large as the errors are, over problems with known answers; tests/calibration.py has them all."""

import numpy as np
import pytest
from calibration import calibrated, histogram, main, of_accuracy, of_evidence


@pytest.mark.slow
def test_every_kind_of_error_has_a_histogram(capsys):
    main(["--problems", "1"])
    shown = capsys.readouterr().out
    for kind in ("annealing", "thermodynamic integration"):
        assert f"{kind}: 1 z-scores" in shown
    for kind in ("Monte Carlo", "bias of the step"):
        assert f"{kind}, mean: " in shown and f"{kind}, sd: " in shown


def test_a_histogram_has_the_moments_of_its_scores():
    head, *lines = histogram("z", np.array([-7.0, 0.1, 0.2]))
    assert head == "z: 3 z-scores, mean -2.23, sd 3.37, largest 7.00"
    assert [line.split()[:2] for line in lines if "#" in line] == [["-5.0", "1"], ["0.0", "2"]]


@pytest.mark.slow
@pytest.mark.parametrize("of_problem, problems", [(of_evidence, 120), (of_accuracy, 60)])
def test_scores_are_standard_normal(of_problem, problems):
    """Of 120 and more normal scores sd and mean are within these ends but for 1e-3, and one is beyond 4 in 1e-2."""
    for kind, scores in calibrated(of_problem, range(problems)).items():
        assert len(scores) > 110, kind
        assert 0.8 < scores.std() < 1.2, kind
        assert abs(scores.mean()) < 4 / len(scores) ** 0.5, kind
        assert abs(scores).max() < 4, kind
