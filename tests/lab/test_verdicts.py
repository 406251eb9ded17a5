"""Published numbers beside ours: when there is a verdict, and what it says."""

import pytest

from lab.results.options import arguments
from lab.results.verdicts import Criterion, Row, compare


@pytest.mark.parametrize(
    ("published", "here", "scale", "settings", "verdict"),
    [
        (1.1, 0.2, "paper", {}, "agrees"),
        (1.1, -0.2, "paper", {}, "disagrees"),
        (1.1, 0.2, "cpu", {}, "not comparable"),
        (-3.0, -3.4, "smoke", {"budget_free": True, "tolerance": 0.5}, "agrees"),
        (-3.0, -3.6, "smoke", {"budget_free": True, "tolerance": 0.5}, "disagrees"),
        (1.1, float("nan"), "paper", {}, "not comparable"),
        (62.5, 30.0, "paper", {"signed": False}, "not comparable"),
    ],
)
def test_verdicts(published, here, scale, settings, verdict):
    row = compare("x", published, here, scale=scale, criterion=Criterion(**settings))
    assert row.verdict == verdict


def test_a_row_says_which_tolerance_decided():
    settings = {"scale": "paper", "note": "so it is"}
    published = Criterion(tolerance=0.5, origin="as published")
    within = compare("x", 1.0, 1.2, criterion=published, **settings)
    assert within.note == "tolerance +- 0.5, as published; so it is"

    plain = Criterion(tolerance=0.5)
    assert compare("x", 1.0, 1.2, criterion=plain, **settings).note == "tolerance +- 0.5; so it is"
    assert compare("x", 1.0, 1.2, **settings).note == "so it is"  # by its sign

    undecided = compare("x", 1.0, 1.2, scale="cpu", criterion=plain)
    assert undecided.note == "same sign"


def test_bad_input(capsys):
    with pytest.raises(ValueError, match="`verdict`: expected one of"):
        Row("x", 1, 2, "perhaps")
    with pytest.raises(SystemExit):
        arguments("doc", output="a.nc").parse_args(["--scale", "huge"])
    assert "invalid choice: 'huge'" in capsys.readouterr().err
