"""Every verb on a simulated accelerator, in processes of their own: the device stays for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator.simulated import missing_names

CASES = sorted((Path(__file__).parent / "cases").glob("cases_*.py"))


@pytest.mark.skipif(
    bool(missing_names()), reason=f"this torch has no {', '.join(missing_names()[:1])}"
)
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_on_the_device(cases):
    options = ["-q", "-o", "python_files=cases_*.py", "-p", "no:cacheprovider"]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(cases)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
