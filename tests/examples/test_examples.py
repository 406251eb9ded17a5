"""Every example runs, tiny, and leaves its result and its figure."""

import json
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest
import xarray as xr

mpl.use("agg")
EXAMPLES = Path(__file__).parents[2] / "examples"
ONE = ["--seeds", "1"]
TINY = {
    "credit_audit.py": [*ONE, "--methods", "SB+pen", "CB+pen", "DFA+pen", "frozen"],
    "credit_gate.py": ONE,
    "early_exit.py": ["--seeds", "2", "--epochs", "1"],
    "figure4_attention.py": ONE,
    "figure5_landscape.py": ["--size", "3", "--samples", "20", "--seeds", "1"],
    "figure7_dynamics.py": ONE,
    "figure8_learning.py": ONE,
    "penalty_or_resonance.py": [*ONE, "--arms", "plain", "no labels"],
    "quickstart.py": ["--epochs", "2", "--n", "3"],
    "recipe_calibration.py": [*ONE, "--batches", "20"],
    "table1_dose_response.py": ONE,
    "table2_imagenet.py": [*ONE, "--architectures", "resnet18"],
    "table3_coatnet.py": ONE,
    "table4_initial_norm.py": ONE,
    "table5_gradient_conflict.py": ONE,
    "table6_controls.py": ONE,
    "table9_few_shot.py": ONE,
    "table12_cifar10.py": ONE,
    "table13_label_noise.py": ["--seeds", "2"],
    "table15_alpha_search.py": ONE,
    "table29_all_active.py": ONE,
}
NOT_RESULTS = {"quickstart.py", "reproduce.py"}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Finished runs, which the scripts share."""
    return tmp_path_factory.mktemp("cache")


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(TINY) | NOT_RESULTS


@pytest.mark.parametrize("name", list(TINY))
def test_example_runs(name, tmp_path, cache, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "nested" / "result.nc"
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    kept = [] if name in NOT_RESULTS else ["--cache", str(cache)]
    main([*TINY[name], *kept, "--output", str(output)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("wrote ")
    assert output.with_suffix(".png").stat().st_size > 10_000

    with xr.open_dataset(output, engine="h5netcdf") as result:
        assert result.data_vars
        described = set(result.data_vars) | set(result.sizes)
        assert [key for key in described if "long_name" not in result[key].attrs] == []
        if name not in NOT_RESULTS:
            assert result.attrs["budget"]

    if name in NOT_RESULTS:
        return

    record = json.loads(output.with_suffix(".json").read_text())
    assert record["rows"]
    assert not re.search(r"\b1 [a-z]+s\b", record["budget"])  # one of a thing is not plural
    assert all((output.parent / name).is_file() for name in record["figures"])
    assert output.with_suffix(".pdf").stat().st_size > 1000
    assert [cell.strip() for cell in printed[-2 - len(record["rows"])].split("|")][1:4] == [
        "published",
        "here",
        "verdict",
    ]


@pytest.mark.parametrize("name", sorted(set(TINY) - NOT_RESULTS - {"early_exit.py"}))
def test_data_that_are_not_there_are_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    with pytest.raises(FileNotFoundError, match=r"expected an \.npz"):
        main(["--data", "nothing.npz"])


@pytest.mark.parametrize("methods", [["SB+pen"], ["BP", "frozen"], ["SB+pen", "DFA+pen"]])
def test_the_credit_audit_of_some_methods(methods, tmp_path, cache, capsys):
    main = runpy.run_path(str(EXAMPLES / "credit_audit.py"))["main"]
    options = ["--cache", str(cache), "--output", str(tmp_path / "audit.nc")]
    main([*ONE, "--methods", *methods, *options])
    printed = capsys.readouterr().out
    assert ("order by deep_cosine" in printed) == ("DFA+pen" in methods)
    assert (tmp_path / "audit.nudge.png").is_file()
    assert (tmp_path / "audit.png").is_file() == (len(methods) > 1)


@pytest.mark.parametrize("name", ["reproduce.py", *sorted(set(TINY) - {"quickstart.py"})])
@pytest.mark.parametrize("seeds", ["0", "-1", "two"])
def test_no_seeds_are_refused(name, seeds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert "--seeds: expected a whole number of at least 1, got" in capsys.readouterr().err


def test_seeds_beyond_the_published_ones_are_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(EXAMPLES / "credit_gate.py"))
    script["main"](["--seeds", "4", "--output", str(tmp_path / "gate.nc")])
    with xr.open_dataset(tmp_path / "gate.nc", engine="h5netcdf") as result:
        assert result["seed"].values.tolist() == [42, 123, 456, 457]


def test_quickstart_learns_and_records_every_branch(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"]
    main(["--epochs", "6", "--n", "3", "--output", str(tmp_path / "q.nc")])
    with xr.open_dataset(tmp_path / "q.nc", engine="h5netcdf") as result:
        assert dict(result.sizes) == {"kind": 2, "epoch": 6, "layer": 4, "branch": 3}
        assert float(result["accuracy"].isel(epoch=-1).min()) > 0.25  # chance is 0.1
        branch_loss = result["branch_loss"].sel(kind="with branches")
        assert bool(branch_loss.notnull().all())
        active, static = (branch_loss.isel(epoch=-1, branch=i).mean() for i in (-1, 0))
        assert active < static


def test_missing_data_is_said(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"]
    with pytest.raises(FileNotFoundError, match=r"expected an \.npz with x_train"):
        main(["--data", str(tmp_path / "nothing.npz")])
