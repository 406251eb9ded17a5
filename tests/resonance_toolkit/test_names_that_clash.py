"""The short names are other people's too: ours are found, or a sentence says what is in the way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["resonance_toolkit", "resonance", "probes", "landscape", "attention", "nudging"]


def run(code: str, *, start: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script that lies in `start`, with the packages of `root`."""
    script = start / "script.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )


def test_the_unique_name_gives_the_very_modules(tmp_path):
    code = (
        "from resonance_toolkit import attention as ours, probes as others\n"
        "import attention, probes\n"
        "print(ours is attention, others is probes)"
    )
    assert run(code, start=tmp_path).stdout.split() == ["True", "True"]


@pytest.mark.parametrize("form", ["attention.py", "attention/__init__.py"])
def test_a_neighbour_of_the_script_is_named_and_not_run(tmp_path, form):
    neighbour = tmp_path / form
    neighbour.parent.mkdir(exist_ok=True)
    neighbour.write_text("print('a stranger ran')", encoding="utf-8")

    process = run("from resonance_toolkit import attention", start=tmp_path)
    last_line = process.stderr.splitlines()[-1]
    assert last_line.startswith("ImportError: `attention` is ")
    assert str(neighbour) in last_line
    assert "rename" in last_line
    assert process.stdout == ""


def test_a_foreign_resonance_harms_nobody(tmp_path):
    (tmp_path / "resonance.py").write_text("raise SystemExit('a stranger ran')", encoding="utf-8")

    code = (
        "import nudging\nfrom resonance_toolkit import attention\nprint(attention.capture.__name__)"
    )
    process = run(code, start=tmp_path)
    assert process.stdout.split() == ["capture"], process.stderr


@pytest.mark.parametrize("source", ["capture = None", "import no_such_module_as_keras"])
def test_a_distribution_installed_over_ours_is_named(tmp_path, source):
    # As pip leaves it: their `__init__.py` in the place of ours, and their list of files.
    site = tmp_path / "site"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, site / package)
    (site / "attention" / "__init__.py").write_text(source, encoding="utf-8")
    metadata = site / "attention-5.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: attention\nVersion: 5.0.0\n", encoding="utf-8")
    (metadata / "RECORD").write_text("attention/__init__.py,,\n", encoding="utf-8")
    start = tmp_path / "start"
    start.mkdir()

    process = run("from resonance_toolkit import attention", start=start, root=site)
    last_line = process.stderr.splitlines()[-1]
    assert "overwritten by the distribution attention" in last_line
    assert "pip uninstall attention, then pip install --force-reinstall" in last_line

    # The others are as they were.
    others = run("from resonance_toolkit import nudging; nudging.nudge", start=start, root=site)
    assert others.returncode == 0, others.stderr


def test_a_clone_that_is_not_installed_says_so(tmp_path):
    code = (
        "import importlib.metadata as metadata\n"
        "def version(name):\n"
        "    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "import resonance, resonance_toolkit\n"
        "print(resonance_toolkit.__version__, resonance.__version__)\n"
        "print(resonance_toolkit.provenance('x')['toolkit_version'])"
    )
    assert run(code, start=tmp_path).stdout.split() == ["0.1.0+not-installed"] * 3
