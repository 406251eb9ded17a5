"""One bar, or one line now and then, for all parts together."""

import itertools
import re

import pytest

import resonance
from resonance_toolkit._base import progress
from tests.resonance_toolkit.front.examine.models import make_mlp, make_vectors

FAST = {"n": 2, "steps": 4, "seeds": 3, "samples": 30, "budget": 3}


@pytest.fixture
def lines(monkeypatch, capsys):
    """Examine with a clock by which everything takes minutes, and return what was written."""
    ticks = itertools.count(step=100)
    monkeypatch.setattr(progress, "_now", lambda: float(next(ticks)))

    def examine(**settings):
        with resonance.showing_progress("lines"):
            resonance.examine(make_mlp(), make_vectors(), **FAST | settings)
        return capsys.readouterr().err.splitlines()

    return examine


def test_a_log_file_gets_lines_of_the_whole_and_none_of_the_verbs_inside(lines):
    written = lines()
    assert all(line.startswith("examine: ") for line in written)
    counts = [int(found[1]) for line in written if (found := re.search(r"(\d+) of 100 p", line))]
    assert counts == sorted(counts)
    assert len(counts) > 3
    assert any(line.startswith("examine: landscape: ") for line in written)
    assert any(line.startswith("examine: response: ") for line in written)
    assert written[-1].startswith("examine: done, 100 percent in ")


def test_a_run_that_goes_on_says_what_it_found(lines, tmp_path):
    path = tmp_path / "run.nc"
    lines(checkpoint=path)
    again = lines(checkpoint=path)
    assert again[0] == f"examine: 100 of 100 percent found in {path}"


def test_a_bar_in_a_terminal_is_one_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_BAR_AFTER", 0)
    with resonance.showing_progress("bar"):
        resonance.examine(make_mlp(), make_vectors(), **FAST)
    labels = set(re.findall(r"\r([a-z][a-z: ]*):\s+\d+%", capsys.readouterr().err))
    assert labels
    assert all(label.startswith("examine") for label in labels)


def test_nothing_is_written_where_nothing_is_wanted(capsys):
    with resonance.showing_progress("off"):
        resonance.examine(make_mlp(), make_vectors(), **FAST | {"parts": "model"})
    assert capsys.readouterr() == ("", "")
