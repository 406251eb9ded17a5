"""MODEL in each of its forms."""

import sys

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers

import attention
from tests.resonance_toolkit.front.command.files import write_arrays, write_images, write_model


def write_color_arrays(path, *, size=32, n=6, classes=5, channels=3):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (n, size, size, channels), dtype=np.uint8)
    y = np.arange(n) % classes
    return write_arrays(path, x, y)


def equal_states(model, other):
    state, other_state = model.state_dict(), other.state_dict()
    return state.keys() == other_state.keys() and all(
        torch.equal(state[name], other_state[name]) for name in state
    )


def test_a_timm_model_is_made_for_the_data_and_drawn_by_the_seed(run, stand_in, tmp_path):
    arrays = write_color_arrays(tmp_path / "a.npz", channels=1)
    before = torch.get_rng_state()
    code, _, err = run("examine", "timm:test_vit", "--data", arrays, "--seed", 7)
    assert code == 0, err
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(7)
    expected = timm.create_model("test_vit", num_classes=5, in_chans=1, img_size=(32, 32))
    assert equal_states(stand_in.model, expected)
    assert "initial weights (seed 7)" in err


def test_a_torchvision_model_is_made_for_the_classes(run, stand_in, tmp_path):
    arrays = write_color_arrays(tmp_path / "a.npz", classes=3)
    code, _, err = run("examine", "torchvision:squeezenet1_1", "--data", arrays, "--classes", 4)
    assert code == 0, err

    torch.manual_seed(0)
    expected = torchvision.models.squeezenet1_1(num_classes=4)
    assert equal_states(stand_in.model, expected)


@pytest.mark.parametrize("form", ["transformers:{}", "{}"])
def test_a_folder_of_transformers_gives_its_weights(run, stand_in, tmp_path, form):
    torch.manual_seed(3)
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=300, bos_token_id=0, eos_token_id=0, **sizes)
    model = transformers.GPT2LMHeadModel(config)
    folder = tmp_path / "gpt2"
    model.save_pretrained(folder)
    text = tmp_path / "a.txt"
    text.write_text("to be, or not to be " * 20, encoding="utf-8")

    code, _, err = run("examine", form.format(folder), "--data", text, "--window", 8)
    assert code == 0, err
    assert equal_states(stand_in.model, model)


def test_a_folder_with_a_configuration_alone_is_drawn(run, stand_in, tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=8, image_size=16, patch_size=8)
    config.save_pretrained(tmp_path / "vit")
    images = write_images(tmp_path / "images")

    words = ["examine", tmp_path / "vit", "--data", images, "--image-size", 16]
    code, _, err = run(*words)
    assert code == 0, err
    assert type(stand_in.model) is transformers.ViTForImageClassification
    assert stand_in.model.config.num_labels == 2
    assert "initial weights" in err


@pytest.mark.parametrize(("name", "n_outputs"), [("build", 3), ("Net", 3), ("ready", 2)])
def test_a_function_a_class_or_a_model_of_a_file(run, stand_in, tmp_path, name, n_outputs):
    own = write_model(tmp_path)
    arrays = write_arrays(tmp_path / "a.npz", y=np.arange(12) % 2)
    code, _, err = run("examine", f"{own}:{name}", "--data", arrays)
    assert code == 0, err
    assert stand_in.model.layers[2].out_features == n_outputs


def test_a_files_neighbour_called_like_an_instrument_is_the_files_own(run, stand_in, tmp_path):
    # As 142 public repositories have it.
    (tmp_path / "attention.py").write_text("WIDTH = 4\nmine = True", encoding="utf-8")
    own = tmp_path / "own.py"
    own.write_text(
        "import attention\nfrom torch import nn\n"
        "def build():\n    assert attention.mine\n    return nn.Linear(attention.WIDTH, 3)",
        encoding="utf-8",
    )
    arrays = write_arrays(tmp_path / "a.npz")

    code, _, err = run("examine", f"{own}:build", "--data", arrays)
    assert code == 0, err
    assert stand_in.model.in_features == 4
    assert sys.modules["attention"] is attention
    assert attention.capture


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("timm:resnet81", "timm has no 'resnet81'; did you mean resnet18"),
        ("torchvision:resnet81", "torchvision has no 'resnet81'; did you mean resnet18"),
        ("transformers:no/such-name", "nor a model that transformers has downloaded"),
        ("resnet18", "got 'resnet18'; did you mean timm:resnet18 or torchvision:resnet18?"),
        ("tim:resnet18", "did you mean timm:resnet18?"),
        ("nothing", "expected timm:NAME, torchvision:NAME"),
        ("none.py:build", "no file none.py"),
        ("own_model.py", "it has Net, Images, Characters, build"),
        ("own_model.py:biuld", "has no 'biuld'; did you mean build"),
        ("own_model.py:needs_width", "missing a required argument: 'width'"),
        ("own_model.py:fails", "failed at line 42: RuntimeError: no weights here"),
        ("own_model.py:number", "gave int; expected an nn.Module"),
        ("empty", "has no config.json"),
        ("broken.py:build", "cannot be run at line 1: SyntaxError"),
        ("digits", "the model digits needs --data digits"),
    ],
)
def test_a_model_that_is_not_there_gives_a_sentence(refused, tmp_path, model, sentence):
    write_model(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.py").write_text("def build(:", encoding="utf-8")
    arrays = write_arrays(tmp_path / "a.npz")
    assert sentence in refused("examine", model, "--data", arrays)


@pytest.mark.parametrize("words", [("--classes", 4), ("--pretrained",)])
def test_options_that_a_file_does_not_see_are_refused(refused, tmp_path, words):
    model = write_model(tmp_path)
    sentence = refused(
        "examine", f"{model}:build", "--data", write_arrays(tmp_path / "a.npz"), *words
    )
    assert sentence.startswith(f"{words[0]}: the code of ")
