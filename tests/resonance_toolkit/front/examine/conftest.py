"""A clock that tells the same times in every run."""

import pytest

from resonance_toolkit._front.examine import budget
from tests.resonance_toolkit.front.examine.steady_clock import make_steady_clock


@pytest.fixture(scope="package", autouse=True)
def _steady_clock():
    """Each look at the clock finds it a little later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "read_clock", make_steady_clock())
        yield
