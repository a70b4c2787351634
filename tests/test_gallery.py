"""The gallery's samplers: each is declared with its source, and some are run against the quadrature of their law."""

import numpy as np
import pytest
import torch
from conftest import EXAMPLES
from covering import slow


def test_there_are_many_none_of_them_stock_and_each_names_its_source(gallery):
    from samplers import catalogue

    assert len(gallery.GALLERY) == sum(len(room.GALLERY) for room in gallery.ROOMS) >= 25
    assert not set(gallery.GALLERY) & set(catalogue)
    assert all(exhibit.recipe.source for exhibit in gallery.GALLERY.values())


def test_the_results_are_of_all_of_them_and_none_is_wrong(gallery):
    table = (EXAMPLES / "gallery" / "results.md").read_text().split("```")[1].splitlines()
    assert [row.split()[0] for row in table[2:-1]] == list(gallery.GALLERY)
    assert all(" agrees " in row for row in table[2:-1])
    assert table[-1].startswith(f"{len(gallery.GALLERY)} samplers, 0 wrong, ")


def test_each_has_a_picture(gallery):
    """`python examples/pictures.py NAME` draws it."""
    assert {picture.stem for picture in (EXAMPLES / "gallery" / "pictures").glob("*.png")} == set(gallery.GALLERY)


@pytest.mark.parametrize("name", ["cox-ingersoll-ross", slow("hmc-with-dense-mass")])
def test_some_agree_with_their_law(gallery, capsys, name):
    assert gallery.main([name, "--quick"]) == 0
    _, row, last = capsys.readouterr().out.splitlines()
    assert row.startswith(f"{name} ") and " agrees " in row and last.startswith("1 samplers, 0 wrong, ")


def test_a_network_of_float32_has_rounding_errors_and_no_jumps(gallery):
    assert gallery.GALLERY["meta-learned"].recipe.check().exact


def test_a_law_that_is_another_one_is_called_wrong(gallery):
    """Draws of exp(-H) agree, of exp(-H/2) not."""
    generator = np.random.default_rng(0)
    verdicts = []
    for concentration in (2.0, 1.0):
        angles = generator.vonmises(1, concentration, (256, 400))
        verdicts.append(gallery.GALLERY["von-mises"].compared({"theta[0]": torch.as_tensor(angles)})[1])
    assert verdicts == [True, False]


def test_a_name_that_is_not_there_is_refused_with_near_ones(gallery, capsys):
    with pytest.raises(SystemExit):
        gallery.main(["magnetik"])
    assert "near are magnetic" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:stein-with-noise, sample. the noise reaches every block")  # of one site
@pytest.mark.parametrize("room", range(10))
def test_all_agree_with_their_law(gallery, room):
    assert gallery.main([exhibit.name for exhibit in gallery.ROOMS[room].GALLERY]) == 0
