"""Options, exit codes and files of `examine`, with a stand-in for the work."""

import subprocess
import sys

import pytest
import torch
import xarray as xr

from tests.resonance_toolkit.front.command.conftest import small_tree
from tests.resonance_toolkit.front.command.files import write_arrays, write_model


@pytest.fixture
def words(tmp_path):
    own = write_model(tmp_path)
    return ["examine", f"{own}:build", "--data", write_arrays(tmp_path / "a.npz")]


def test_the_page_and_the_result_are_written_and_named(run, stand_in, words, tmp_path):
    code, out, _ = run(*words, "--output", tmp_path / "new" / "report")
    assert code == 0
    lines = out.splitlines()
    assert lines == [
        "attention: refused: no attention in it",
        "undecided: too few seeds",
        f"result: {tmp_path}/new/report/result.nc",
        f"page: {tmp_path}/new/report/report.html",
    ]
    saved = xr.open_datatree(tmp_path / "new" / "report" / "result.nc", engine="h5netcdf")
    assert saved.load().identical(stand_in.tree)
    saved.close()
    assert (tmp_path / "new" / "report" / "report.html").is_file()


def test_options_become_arguments_and_the_rest_is_left_to_examine(run, stand_in, words, tmp_path):
    run(*words)
    assert set(stand_in.settings) == {"checkpoint", "seed", "title"}

    options = "--layers layers.0,layers.1 --n 3 --alpha 0.5 --budget 90 --steps 20 --seeds 2"
    more = "--parts model,response --seed 4 --loss cross_entropy --title mine"
    code, _, err = run(*words, *options.split(), *more.split())
    assert code == 0, err
    settings = stand_in.settings
    del settings["checkpoint"]
    assert settings == {
        "layers": ["layers.0", "layers.1"],
        "n": 3,
        "alpha": 0.5,
        "budget": 90.0,
        "steps": 20,
        "seeds": 2,
        "parts": ["model", "response"],
        "seed": 4,
        "loss": torch.nn.functional.cross_entropy,
        "title": "mine",
    }
    run(*words, "--budget", "minutes")
    assert stand_in.settings["budget"] == "minutes"


def test_a_run_that_was_stopped_goes_on_unless_it_is_to_begin_anew(run, stand_in, words, tmp_path):
    progress = tmp_path / "resonance-report" / "progress.nc"
    progress.parent.mkdir()
    stand_in.tree = small_tree(("done", "interrupted"))
    progress.write_text("the model part", encoding="utf-8")

    code, out, err = run(*words)
    assert code == 130
    assert "the same command continues" in err
    assert "result: " in out
    assert stand_in.settings["checkpoint"].samefile(progress)
    assert progress.read_text(encoding="utf-8") == "the model part"

    stand_in.tree = small_tree(("done", "done"))
    code, _, _ = run(*words)
    assert code == 0
    assert not progress.exists()  # nothing is left to go on with

    progress.write_text("the model part", encoding="utf-8")
    stand_in.tree = KeyboardInterrupt()  # before there is anything
    assert run(*words, "--fresh")[0] == 130
    assert not progress.exists()


def test_an_output_folder_of_another_run_is_not_overwritten(refused, stand_in, words):
    stand_in.tree = ValueError(
        "`checkpoint`: 'a/progress.nc' was made with other settings; it differs in n. Delete it or "
        "give another path"
    )
    assert refused(*words) == (
        "--output: 'a/progress.nc' was made with other settings; it differs in n; give another "
        "folder, or --fresh to start over"
    )


def test_codes_tell_the_users_mistakes_from_our_failures(run, stand_in, words):
    stand_in.tree = ValueError("`layers`: no layer matches 'x'")
    code, _, err = run(*words)
    assert (code, err.splitlines()[-1]) == (2, "resonance: --layers: no layer matches 'x'")

    stand_in.tree = RuntimeError("it broke\nin two")
    code, _, err = run(*words)
    assert code == 1
    assert "failed by RuntimeError: it broke. This should not happen" in err
    assert "Traceback" not in err
    assert "Traceback" in run(*words, "--debug")[2]

    stand_in.tree = small_tree(("failed", "failed"))
    assert run(*words)[0] == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--loss", "mse_los"], "--loss: torch.nn.functional has no loss 'mse_los'"),
        (["--loss", "relu"], "has no loss 'relu'; expected one such as"),
        (["--loss", "mse_loss"], "--loss: outputs (2, 3) and targets (2,) have unequal shapes"),
        (["--loss", "ctc_loss"], "--loss: ctc_loss fails on outputs"),
        (
            ["--device", "nowhere"],
            "cannot use 'nowhere' on this machine; it has cpu",
        ),
        (["--device", "meta"], "--device: expected one that computes"),
        (["--n", "0"], "expected at least 1, got 0"),
        (["--n", "many"], "invalid whole number value: 'many'; see resonance examine --help"),
        (["--alpha", "nan"], "--alpha: expected a finite number of at least 0, got nan"),
        (["--loss", "mse"], "has no loss 'mse'; expected one such as mse_loss"),
        (["images/"], "unrecognized arguments: images/; data are given by --data"),
        (["--alfa", "1"], "unrecognized arguments: --alfa"),
        (
            ["--output", "a.npz"],
            "the folder a.npz: there is a file of that name",
        ),
        (["--checkpoint", "none.pt"], "--checkpoint: no file none.pt"),
    ],
)
def test_options_that_make_no_sense_give_a_sentence(refused, words, options, sentence):
    assert sentence in refused(*words, *options)


def test_settings_are_refused_before_anything_is_loaded(refused):
    # Neither the model nor the data are there, which would be told next.
    words = ("examine", "timm:none", "--data", "nowhere")
    assert "--budget: expected 'seconds'" in refused(*words, "--budget", "soon")
    assert "--parts: expected one of model" in refused(*words, "--parts", "respnse")
    assert "--seed: expected a whole number" in refused(*words, "--seed", "-1")


def test_what_is_missing_is_named(refused):
    assert "python -m resonance examine digits" in refused("examine")
    assert "say what timm:x is examined on" in refused("examine", "timm:x")
    assert "say which model" in refused("examine", "--data", "a.npz")
    assert "COMMAND" in refused()
    assert "COMMAND: expected examine, show, info, got 'exmine'" in refused("exmine", "digits")
    assert "MODEL: expected digits" in refused("examine", "digit")


def test_a_mistake_in_the_options_is_one_line(run, stand_in):
    _, out, err = run("examine", "--n", "many")
    assert out == ""
    assert len(err.splitlines()) == 1


def test_a_missing_library_is_named_with_its_command(refused, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    told = refused("examine", "timm:resnet18", *words[2:])
    assert told.endswith("run: pip install 'resonance-toolkit[examples]'")


def test_help_has_examples_and_loads_nothing_that_it_does_not_need():
    code = (
        "import sys\n"
        "from resonance_toolkit._front.command import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "slow = {'timm', 'transformers', 'sklearn', 'matplotlib', 'probes', 'xarray'}\n"
        "print(*sorted(slow & sys.modules.keys()), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "examine", "--help"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert "python -m resonance examine digits" in process.stdout
    assert "the code of the file is run" in " ".join(process.stdout.split())
    assert process.stderr.split() == []
