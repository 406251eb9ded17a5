import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from resonance_toolkit import (
    check_choice,
    check_module,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)

NO_NUMBERS = [True, "3", None, [1], math.nan, math.inf, -math.inf, 1j, torch.tensor(1.0)]


@pytest.mark.parametrize("value", [3, np.int64(3), np.int8(3), np.uint16(3)])
def test_whole_numbers_of_python_and_numpy_pass_as_python_s(value):
    assert check_whole("n", value) == 3
    assert type(check_whole("n", value)) is int


@pytest.mark.parametrize("value", [*NO_NUMBERS, 3.0, np.float64(3), np.bool_(True), 0, -1])
def test_what_is_no_whole_number_of_at_least_one_is_refused(value):
    expected = f"`n`: expected a whole number of at least 1, got {value!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        check_whole("n", value)


def test_the_smallest_whole_number_is_the_caller_s():
    assert check_whole("seed", 0, at_least=0) == 0
    assert check_whole("seed", -7, at_least=None) == -7
    with pytest.raises(ValueError, match=r"`seed`: expected a whole number, got 1\.5"):
        check_whole("seed", 1.5, at_least=None)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int32(2)])
@pytest.mark.parametrize("check", [check_positive, check_not_negative])
def test_numbers_pass_as_floats(check, value):
    assert check("eta", value) == 2.0
    assert type(check("eta", value)) is float


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("check", [check_positive, check_not_negative, check_share])
def test_what_is_no_finite_number_is_refused(check, value):
    with pytest.raises(ValueError, match=re.escape(f"got {value!r}")):
        check("eta", value)


@pytest.mark.parametrize(
    ("check", "edge", "is_allowed"),
    [
        (check_positive, 0, False),
        (check_positive, 5e-324, True),
        (check_not_negative, 0, True),
        (check_not_negative, -5e-324, False),
        (check_share, 0, False),
        (check_share, 1, True),
        (check_share, math.nextafter(1, 2), False),
    ],
)
def test_edges_of_ranges(check, edge, is_allowed):
    if is_allowed:
        assert check("share", edge) == edge
    else:
        with pytest.raises(ValueError, match="`share`: expected"):
            check("share", edge)


def test_choices_are_listed_with_what_else_would_do():
    assert check_choice("loss", "bce", ("bce", "ce")) == "bce"
    expected = "`loss`: expected one of bce, ce or a callable, got 'mse'"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        check_choice("loss", "mse", ("bce", "ce"), or_else="a callable")


@pytest.mark.parametrize("value", [None, 3, ["bce"], {"bce"}])
def test_what_is_no_word_is_no_choice(value):
    with pytest.raises(ValueError, match="`loss`: expected one of bce, ce, got"):
        check_choice("loss", value, ("bce", "ce"))


def test_modules_pass_and_classes_are_told_to_be_called():
    check_module(nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"`to`: expected an nn\.Module, got the class ReLU"):
        check_module(nn.ReLU, argument="to")
    with pytest.raises(TypeError, match=r"`model`: expected an nn\.Module, got int"):
        check_module(3)
