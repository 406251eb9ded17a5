"""The documentation builds without a warning, and the code of the tutorials runs."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def test_the_pages_build_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's news, on standard error
    found = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "WARNING" not in found.stderr, found.stderr  # `--quiet` would hide them from `--strict`
    api = (tmp_path / "api" / "landscape.html").read_text()
    assert "landscape.grid" in api
    assert "filter by filter" in api  # of the docstring
    for page in tmp_path.rglob("*.html"):  # readable offline: nothing is loaded from elsewhere
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="https?://[^"]*"', page.read_text()
        )
        assert not loaded, page


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_makes_its_pictures(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "docs" / "pictures.py"))["main"]([page.stem])
    plt.close("all")
    shown = set(re.findall(r"\(\.\./pictures/([a-z_]+\.png)\)", page.read_text()))
    assert shown == {path.name for path in (tmp_path / "pictures").iterdir()}
    assert all((ROOT / "docs" / "pictures" / name).is_file() for name in shown)


def test_every_tutorial_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    assert TUTORIALS
    assert all(f"tutorials/{page.name}" in listed for page in TUTORIALS)
