"""`--checkpoint`: weights of any wrapping, and nothing that runs."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.resonance_toolkit.front.command.files import write_arrays, write_model


@pytest.fixture
def examine(run, tmp_path):
    own = write_model(tmp_path)
    arrays = write_arrays(tmp_path / "a.npz")

    def examine_with(checkpoint):
        return run("examine", f"{own}:build", "--data", arrays, "--checkpoint", checkpoint)

    return examine_with


@pytest.fixture
def refused_sentence(examine):
    def examine_with(checkpoint):
        code, _, err = examine(checkpoint)
        assert code == 2, err
        assert "Traceback" not in err
        return err.strip().splitlines()[-1]

    return examine_with


def weights(**changes):
    generator = torch.Generator().manual_seed(1)
    shapes = {"layers.0.weight": (8, 4), "layers.0.bias": (8,)}
    shapes |= {"layers.2.weight": (3, 8), "layers.2.bias": (3,)} | changes
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def prefixed(prefix):
    return {f"{prefix}{name}": tensor for name, tensor in weights().items()}


@pytest.mark.parametrize(
    "contents",
    [
        weights(),
        {"state_dict": weights(), "epoch": 3},
        {"model": weights(), "optimizer": {"lr": 0.1}},
        prefixed("module."),
        prefixed("_orig_mod."),
        prefixed("module._orig_mod."),
        {"state_dict": prefixed("model.")},  # as Lightning names them
        {name.replace("layers.", "layers._orig_mod."): w for name, w in weights().items()},
    ],
    ids=["plain", "state_dict", "model", "module.", "_orig_mod.", "both", "lightning", "inside"],
)
@pytest.mark.parametrize("is_new_format", [True, False])
def test_weights_are_found_under_any_wrapping(examine, stand_in, tmp_path, contents, is_new_format):
    path = tmp_path / "w.pt"
    torch.save(contents, path, _use_new_zipfile_serialization=is_new_format)
    code, _, err = examine(path)
    assert code == 0, err
    for name, tensor in weights().items():
        torch.testing.assert_close(stand_in.model.state_dict()[name], tensor, rtol=0, atol=0)


def test_weights_of_safetensors(examine, stand_in, tmp_path):
    save_file(weights(), tmp_path / "w.safetensors")
    code, _, err = examine(tmp_path / "w.safetensors")
    assert code == 0, err
    assert torch.equal(stand_in.model.layers[2].bias, weights()["layers.2.bias"])


class Touch:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("write", ["torch", "old torch", "pickle"])
def test_a_file_that_would_run_code_is_refused(refused_sentence, tmp_path, write):
    trace = tmp_path / "was_run"
    contents = {"state_dict": weights(), "extra": Touch(trace)}
    path = tmp_path / "w.pt"
    if write == "pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=write == "torch")

    sentence = refused_sentence(path)
    assert not trace.exists()
    if write != "pickle":
        assert "holds more than tensors (io.open)" in sentence
        assert "save model.state_dict()" in sentence


def test_a_whole_model_is_refused(refused_sentence, tmp_path):
    torch.save(nn.Linear(4, 3), tmp_path / "w.pt")
    sentence = refused_sentence(tmp_path / "w.pt")
    assert "holds more than tensors (torch.nn.modules.linear.Linear)" in sentence


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (weights(**{"layers.2.weight": (10, 8), "layers.2.bias": (10,)}), "--classes 10"),
        (weights(**{"layers.2.weigth": (3, 8)}), "has no layers.2.weigth; did you mean"),
        ({"layers.0.weight": torch.ones(8, 4)}, "it lacks layers.0.bias, layers.2.weight"),
        ({"epoch": 3}, "has no weights by name under state_dict"),
        (torch.ones(3), "holds a Tensor; expected what torch.save"),
    ],
)
def test_weights_that_do_not_fit_give_a_sentence(refused_sentence, tmp_path, contents, sentence):
    torch.save(contents, tmp_path / "w.pt")
    assert sentence in refused_sentence(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_file_of_something_else_gives_a_sentence(refused_sentence, tmp_path, name):
    (tmp_path / name).write_bytes(np.arange(100).tobytes())
    assert f"{name} cannot be read" in refused_sentence(tmp_path / name)
    assert "no file" in refused_sentence(tmp_path / "none.pt")
