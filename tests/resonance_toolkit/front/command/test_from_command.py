"""What a command line examines is to be had in Python, by the words that the page shows."""

import shlex

import numpy as np
import pytest
import torch

import resonance_toolkit
from resonance_toolkit._front.command.parser import parse_arguments
from resonance_toolkit._front.command.write_command import write_command

MODEL = """
import torch

def build():
    torch.manual_seed(3)
    return torch.nn.Linear(4, 2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model.py").write_text(MODEL, encoding="utf-8")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)).astype("f4"), np.arange(6) % 2
    np.savez(tmp_path / "arrays.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return x, y


def test_model_data_and_held_out_samples_are_those_of_the_files(folder):
    x, y = folder
    model, data, held_out = resonance_toolkit.from_command(
        "examine 'my model.py:build' --data arrays.npz --steps 3"
    )
    torch.manual_seed(3)
    torch.testing.assert_close(model.weight, torch.nn.Linear(4, 2).weight, rtol=0, atol=0)
    for (inputs, targets), n_samples in ((data, 6), (held_out, 2)):
        np.testing.assert_array_equal(inputs, x[:n_samples])
        np.testing.assert_array_equal(targets, y[:n_samples])


def test_the_words_that_are_written_are_those_that_were_given():
    words = ["examine", "my model.py:build", "--data", "a.npz", "--pretrained", "--n", "3"]
    words += ["--mean", "0.5,0.25,0.125", "--layers", "blocks.*,head", "--alpha", "0.5"]
    given = parse_arguments([*words, "--output", "elsewhere", "--debug"])
    command = write_command(given)
    assert "elsewhere" not in command

    again = parse_arguments(shlex.split(command))
    differing = {name for name in vars(given) if vars(given)[name] != vars(again)[name]}
    assert differing == {"output", "debug"}


@pytest.mark.parametrize(
    ("command", "error", "sentence"),
    [
        ("", ValueError, "expected 'examine MODEL --data DATA', got ''"),
        ("show result.nc", ValueError, "expected 'examine MODEL --data DATA'"),
        ("examine 'model.py", ValueError, "No closing quotation"),
        ("examine digits --alfa 1", ValueError, "unrecognized arguments: --alfa 1"),
        ("examine none.py:build --data arrays.npz", ValueError, "no file none.py"),
        (["examine", "digits"], TypeError, "expected text, got list"),
    ],
)
def test_other_words_are_refused(folder, capsys, command, error, sentence):
    with pytest.raises(error, match="`command`: ") as caught:
        resonance_toolkit.from_command(command)
    assert sentence in str(caught.value)
    assert capsys.readouterr() == ("", "")
