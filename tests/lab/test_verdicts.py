"""Published numbers beside ours: when there is a verdict, and what it says."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from lab.data.identity import NAMES, identify
from lab.data.images import Images, digits, load_npz
from lab.results.options import arguments
from lab.results.verdicts import (
    Published,
    Row,
    compare,
    compare_with_range,
    format_published,
    printed_as,
)
from lab.studies.conditions import Conditions, conditions_of, obstacles, published_conditions
from lab.training.recipe import Recipe

PAPER = Conditions(data="CIFAR-10", epochs=200, seeds=3)
GAIN = Published(9.2, deviation=0.5, p="< 0.001")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([9.0, 9.2, 9.4], "agrees"),
        ([8.4, 8.5, 8.6], "agrees"),  # below the mean, within its deviation
        ([8.0, 8.1, 8.2], "disagrees"),  # of the same sign
        ([7.0, 8.0, 9.0], "agrees"),  # the interval reaches 10.5
        ([-9.2, -9.2, -9.3], "disagrees"),
        ([9.2], "not comparable"),  # a single seed has no interval
        ([9.2, float("nan")], "not comparable"),
        ([float("nan")] * 3, "not comparable"),
        ([], "not comparable"),
    ],
)
def test_the_interval_decides(values, verdict):
    assert compare("gain", GAIN, values).verdict == verdict


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "CIFAR-100"},
        {"data": "digits"},
        {"epochs": 20},
        {"epochs": 400},
        {"per_class": 500},
        {"seeds": 2},
        {"complete": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("values", [[9.0, 9.2, 9.4], [1.0, 1.1, 1.2]])
def test_other_data_or_a_smaller_budget_never_has_a_verdict(changes, values):
    here = Conditions(**{"data": "CIFAR-10", "epochs": 200, "seeds": 3} | changes)
    reasons = obstacles(here, PAPER)
    assert len(reasons) == 1

    row = compare("gain", GAIN, values, obstacles=reasons)
    assert row.verdict == "not comparable"
    assert reasons[0] in row.note


def test_more_seeds_than_the_paper_are_no_obstacle():
    assert obstacles(Conditions(data="CIFAR-10", epochs=200, seeds=30), PAPER) == []


def test_without_a_deviation_the_interval_must_contain_the_number():
    values = [1.0, 1.2, 1.4]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert compare("x", low + 1e-6, values).verdict == "agrees"
    assert compare("x", low - 1e-6, values).verdict == "disagrees"

    row = compare("x", 1.2, values)
    assert (row.low, row.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("printed", "values", "verdict"),
    [
        ("0.0000", [2e-5, 3e-5, 2.5e-5], "agrees"),
        ("0.0000", [6e-5, 6.1e-5, 6.2e-5], "disagrees"),
        ("0.0002", [1.6e-4, 1.61e-4], "agrees"),
        ("-65.0", [-65.031, -65.03], "agrees"),
        ("-65.0", [-65.1, -65.101], "disagrees"),
        ("302", [302.4, 302.41], "agrees"),
        ("1.3e4", [13400.0, 13410.0], "agrees"),
        ("1.3e4", [13600.0, 13601.0], "disagrees"),
    ],
)
def test_a_printed_number_stands_for_all_that_round_to_it(printed, values, verdict):
    row = compare("x", printed_as(printed), values)
    assert row.verdict == verdict
    assert format_published(row) == printed


def test_rounding_is_not_added_to_a_deviation():
    values = [9.2 - 0.5 - 0.04, 9.2 - 0.5 - 0.0401]
    assert compare("gain", replace(GAIN, rounding=0.05), values).verdict == "disagrees"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([0.4, 0.5, 0.6], "agrees"), ([3.0, 3.1], "disagrees"), ([0.2, 0.9], "not comparable")],
)
def test_a_word_is_a_range(values, verdict):
    row = compare_with_range("norm", "reduced", values, (0.0, 1.0))
    assert (row.verdict, row.published) == (verdict, "reduced")

    row = compare_with_range("norm", "reduced", values, (0.0, 1.0), obstacles=["digits"])
    assert row.verdict == "not comparable"


def _images(means, deviations, *, classes=10, train=5000, test=1000, shape=(3, 32, 32)):
    """Labels as they are in the set, with images that take no memory."""
    return Images(
        torch.zeros(()).expand(classes * train, *shape),
        torch.arange(classes).repeat_interleave(train),
        torch.zeros(()).expand(classes * test, *shape),
        torch.arange(classes).repeat_interleave(test),
        channel_means=means,
        channel_deviations=deviations,
    )


# As everybody prints them.
TEN = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
HUNDRED = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def test_a_set_is_known_by_its_content():
    assert identify(_images(*TEN)) == "CIFAR-10"
    assert identify(_images(*HUNDRED, classes=100, train=500, test=100)) == "CIFAR-100"
    assert identify(digits()) == "digits"


@pytest.mark.parametrize(
    "images",
    [
        _images(*HUNDRED),  # ten coarse classes of other images
        _images(*TEN, train=4999),
        _images(*TEN, test=100),
        _images(*TEN, shape=(3, 28, 28)),
        _images((0.5, 0.5, 0.5), TEN[1]),
        _images(TEN[0], (0.25, 0.25, 0.25)),
        _images((), ()),
        _images(*TEN, classes=100, train=500, test=100),
    ],
)
def test_a_set_with_other_content_is_not_taken_for_it(images):
    assert identify(images).startswith("other images")


def test_the_name_of_a_file_decides_nothing(tmp_path):
    """An .npz that is called cifar10 and holds something else."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20) % 10
    path = tmp_path / "cifar10.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)

    loaded = load_npz(path)
    expected = images.reshape(-1, 3) / 255
    np.testing.assert_allclose(loaded.channel_means, expected.mean(0), rtol=1e-5)
    np.testing.assert_allclose(loaded.channel_deviations, expected.std(0), rtol=1e-5)

    here = conditions_of(Recipe(data=str(path)), 10)
    assert obstacles(here, published_conditions("mlp", "cifar10", 10)) == [
        f"other images (20 of 3 x 32 x 32, 10 classes), not {NAMES['cifar10']}"
    ]


def test_bad_input(capsys):
    with pytest.raises(ValueError, match="`verdict`: expected one of"):
        Row("x", 1, 2, "perhaps")
    with pytest.raises(SystemExit):
        arguments("doc", output="a.nc").parse_args(["--scale", "huge"])
    assert "invalid choice: 'huge'" in capsys.readouterr().err
