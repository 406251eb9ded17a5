"""A stand-in for `examine` and `page`, so that a test sees what the command asks of them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import resonance_toolkit
from resonance_toolkit._front.command import main


def small_tree(statuses=("done", "refused"), sentence="undecided: too few seeds"):
    parts = ["model", "attention"][: len(statuses)]
    root = xr.Dataset(
        {
            "status": ("part", list(statuses)),
            "reason": ("part", ["" if s == "done" else "no attention in it" for s in statuses]),
            "seconds": ("part", [1.5, np.nan][: len(statuses)]),
            "call": ("part", ["find_blocks(model)"] * len(statuses)),
            "preparation_seconds": ((), 0.25),  # of the whole, as in a tree of `examine`
        },
        coords={"part": parts},
        attrs={"made_by": "resonance.examine", "model": "Net", "verdict_sentence": sentence},
    )
    model = xr.Dataset({"loss": ((), 2.3)}, attrs={"made_by": "resonance.examine"})
    return xr.DataTree.from_dict({"/": root, "/model": model})


class StandIn:
    """What the last call of `examine` was given, and what it gives back."""

    def __init__(self):
        self.tree = small_tree()
        self.calls = []

    def examine(self, model, data, **settings):
        self.model, self.data, self.settings = model, data, settings
        self.calls.append(settings)
        if isinstance(self.tree, BaseException):
            raise self.tree
        return self.tree

    def page(self, tree, path):
        self.shown = tree
        Path(path).write_text("<!doctype html>", encoding="utf-8")


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    stand_in = StandIn()
    monkeypatch.setattr(resonance_toolkit, "examine", stand_in.examine, raising=False)
    monkeypatch.setattr(resonance_toolkit, "page", stand_in.page, raising=False)
    return stand_in


@pytest.fixture
def run(stand_in, capsys):
    """Run a command line, and give its code and what it wrote."""

    def run_words(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
        written = capsys.readouterr()
        return code, written.out, written.err

    return run_words


@pytest.fixture
def refused(run):
    """Run a command line that is refused, and give the sentence."""

    def run_words(*words):
        code, _, err = run(*words)
        lines = err.strip().splitlines()
        assert code == 2, err
        assert "Traceback" not in err
        assert lines[-1].startswith("resonance"), err
        return lines[-1].split(": ", 1)[1]

    return run_words
