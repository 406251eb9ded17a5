"""The contract of every verb, with model and data on the device; the same numbers as on a CPU."""

import numpy as np
import pytest

from tests.accelerator.simulated import DEVICE
from tests.contract import test_contract as contract
from tests.contract.test_contract import (
    test_model_and_random_state_are_untouched,
    test_model_is_untouched_when_its_forward_raises,
    test_result_describes_itself,
    test_result_is_the_same_twice_whatever_the_global_seed,
    test_result_survives_netcdf,
    verb,
)

__all__ = [
    "test_model_and_random_state_are_untouched",
    "test_model_is_untouched_when_its_forward_raises",
    "test_result_describes_itself",
    "test_result_is_the_same_twice_whatever_the_global_seed",
    "test_result_survives_netcdf",
    "verb",
]

# Adam makes steps of one size even of gradients that are nothing but rounding, such as that of a
# bias before a batch norm: the bend of a curve differs there, and the loss on the curve a little.
RELATIVE_TOLERANCES = {
    "landscape.curve": 1e-2,
    "landscape.curve unequal batches": 1e-2,
    # Differences of two gradients in float32, of which rounding leaves some percent: the verb warns
    # of it, and what exactly is left depends on the order of sums.
    "landscape.curvature finite difference": 1e-1,
}

_make_model_on_cpu = contract.make_model
_make_data_on_cpu = contract.make_data


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    def make_data():
        return tuple(tensor.to(DEVICE) for tensor in _make_data_on_cpu())

    monkeypatch.setattr(contract, "make_model", lambda: _make_model_on_cpu().to(DEVICE))
    monkeypatch.setattr(contract, "make_data", make_data)


def test_numbers_are_those_of_the_processor(verb, request):
    tolerance = RELATIVE_TOLERANCES.get(request.node.callspec.params["verb"], 1e-4)
    on_cpu = verb(_make_model_on_cpu(), _make_data_on_cpu())
    on_device = verb(contract.make_model(), contract.make_data())

    assert list(on_device.variables) == list(on_cpu.variables)
    for name, expected in on_cpu.variables.items():
        actual = on_device[name].values
        if expected.dtype.kind == "f":
            size = np.nan_to_num(np.abs(expected.values)).max(initial=0.0)
            np.testing.assert_allclose(
                actual, expected, rtol=tolerance, atol=max(1e-5 * size, 1e-7), err_msg=str(name)
            )
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=str(name))
