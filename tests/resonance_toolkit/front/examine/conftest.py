"""A clock that tells the same times in every run."""

import itertools

import pytest

from resonance_toolkit._front.examine import budget


@pytest.fixture(scope="package", autouse=True)
def _steady_clock():
    """Each look at the clock finds it a hundredth of a second later."""
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "read_clock", lambda: next(ticks) / 100)
        yield
