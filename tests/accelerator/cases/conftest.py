"""Installs the simulated device, which cannot be taken back: never in pytest's own process."""

import pytest

from tests.accelerator.simulated import install


@pytest.fixture(scope="session", autouse=True)
def _simulated_device():
    install()
