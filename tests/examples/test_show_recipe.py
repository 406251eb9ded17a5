"""`--show-recipe` prints the settings of every run, and runs nothing."""

import re
import runpy
from dataclasses import asdict
from pathlib import Path

import figure8_learning
import pytest
import table1_dose_response
import table12_cifar10

from lab.results.options import format_runs
from lab.studies import main_runs, study
from tests.helpers.published import CHOSEN

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(
    path.name for path in EXAMPLES.glob("*.py") if path.stem not in ("quickstart", "reproduce")
)


def read_runs(text):
    """Read the printed settings back: for each run a dictionary of texts."""
    shared_part, _, varying_part = text.partition("and each with\n")
    shared = dict(line.split(maxsplit=1) for line in shared_part.splitlines()[1:])

    if not varying_part:
        return [shared]

    # Two blanks or more between columns; a tuple has one after each comma.
    names, *rows = (re.split(r"\s{2,}", line.strip()) for line in varying_part.splitlines())
    return [shared | dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_shows_its_runs_and_makes_none(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / name))["main"]

    with pytest.raises(SystemExit) as end:
        main(["--scale", "paper", "--show-recipe"])

    assert end.value.code == 0

    runs = read_runs(capsys.readouterr().out)
    assert all(int(run["epochs"]) > 0 and int(run["seed"]) >= 42 for run in runs)
    assert list(tmp_path.iterdir()) == []


def test_table_1_shows_table_15(capsys):
    with pytest.raises(SystemExit):
        table1_dose_response.main(["--scale", "paper", "--seeds", "1", "--show-recipe"])

    labels = {"mlp": "MLP", "cnn": "CNN", "vit6": "ViT-6L"}
    runs = read_runs(capsys.readouterr().out)
    shown = {
        (int(run["n"]), labels[run["backbone"]]): tuple(
            float(run[name]) for name in ("lr", "weight_decay", "alpha")
        )
        for run in runs
        if run["n"] != "0"
    }
    assert shown == CHOSEN


@pytest.mark.parametrize(
    ("script", "module"), [(figure8_learning, main_runs), (table12_cifar10, study)]
)
@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_what_is_shown_is_what_is_run(script, module, scale, monkeypatch, capsys):
    options = ["--scale", scale, "--data", "digits"]
    with pytest.raises(SystemExit):
        script.main([*options, "--show-recipe"])

    shown = capsys.readouterr().out

    swept = []

    def stop(recipes, **_):
        swept.extend(recipes)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "sweep", stop)
    with pytest.raises(KeyboardInterrupt):
        script.main(options)

    settings = [asdict(recipe) for recipe in dict.fromkeys(swept)]
    expected = [{name: str(value) or "''" for name, value in run.items()} for run in settings]
    assert read_runs(shown) == expected


def test_a_single_run_has_nothing_that_varies():
    assert format_runs([{"n": 1}, {"n": 1}]) == "1 run with\n    n  1"


def test_other_processes_print_nothing(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        table12_cifar10.main(["--show-recipe"])
    assert capsys.readouterr().out == ""
