"""`info`: versions, and whose files our names lead to."""

import runpy
import sys

import pytest

import resonance_toolkit
from resonance_toolkit._front.command import names, run_info


@pytest.fixture
def troubles(run, monkeypatch):
    """What `info` says is in the way, of files alone unless distributions are given."""

    def listed(distributions=None):
        monkeypatch.setattr(names, "packages_distributions", lambda: distributions or {})
        code, out, err = run("info")
        assert code == 0, err
        return [line[2:] for line in out.splitlines() if line.startswith("! ")]

    return listed


def test_versions_and_what_is_missing(run, monkeypatch):
    known = run_info.version

    def version(name):
        if name == "mlflow":
            raise run_info.PackageNotFoundError(name)
        return "1.2.3" if name == "wandb" else known(name)

    monkeypatch.setattr(run_info, "version", version)
    code, out, err = run("info")
    assert code == 0, err
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line}
    assert rows["resonance-toolkit"].startswith(resonance_toolkit.__version__)
    assert rows["wandb"] == "1.2.3"
    assert rows["mlflow"] == "missing; pip install 'resonance-toolkit[logging]'"
    assert "of which torch uses" in rows["processors"]
    assert rows["attention"] == "ours"


@pytest.mark.parametrize("form", ["attention.py", "attention/__init__.py"])
def test_a_neighbour_in_the_working_folder_is_named_and_not_run(troubles, tmp_path, form):
    neighbour = tmp_path / form
    neighbour.parent.mkdir(exist_ok=True)
    neighbour.write_text("raise SystemExit('a stranger ran')", encoding="utf-8")
    (tmp_path / "probes").mkdir()  # without `__init__`: in nobody's way

    (trouble,) = troubles()
    assert f"`import attention` gives {neighbour}; rename it" in trouble


def test_a_stranger_on_the_path_is_named(troubles, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "resonance.py").touch()
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])

    (trouble,) = troubles()
    assert f"`import resonance` gives {elsewhere / 'resonance.py'}, which comes first" in trouble

    # Behind us it is in nobody's way.
    ours = str(names._OURS)
    monkeypatch.setattr(sys, "path", [ours, *sys.path[1:], str(elsewhere)])
    assert troubles() == []


def test_a_distribution_with_one_of_our_names_is_named(troubles):
    (trouble,) = troubles(
        {"gradients": ["resonance-toolkit", "gradients"], "probes": ["resonance-toolkit"]}
    )
    assert trouble.startswith("the distribution gradients has `gradients` too")
    assert "pip uninstall gradients, then pip install --force-reinstall" in trouble


def test_a_module_run_by_its_name_finds_ours_before_the_working_folders(tmp_path, monkeypatch):
    # `python -m` puts the working folder first.
    (tmp_path / "attention.py").write_text("raise SystemExit('a stranger ran')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["resonance_toolkit", "--version"])

    with pytest.raises(SystemExit) as end:
        runpy.run_module("resonance_toolkit", run_name="__main__")
    assert not end.value.code
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
