"""What every test file needs."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _closed_figures():
    """Matplotlib keeps figures until they are closed, and warns of many."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
