"""DATA in each of its forms, as `examine` is given it."""

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image

from tests.resonance_toolkit.front.command.files import write_arrays, write_images, write_model

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406])
IMAGENET_STD = np.array([0.229, 0.224, 0.225])


@pytest.fixture
def examine(run, tmp_path):
    own = write_model(tmp_path)

    def examine_with(name, data, *words):
        code, _, err = run("examine", f"{own}:{name}", "--data", data, *words)
        assert code == 0, err
        return err

    return examine_with


@pytest.fixture
def refused_data(refused, tmp_path):
    own = write_model(tmp_path)

    def examine_with(name, data, *words):
        return refused("examine", f"{own}:{name}", "--data", data, *words)

    return examine_with


def test_images_of_a_folder_are_cut_square_and_standardised(examine, stand_in, tmp_path):
    folder = write_images(tmp_path / "images", n=3, size=(10, 8))
    words = ["--image-size", 8, "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4"]
    err = examine("Images", folder, *words)

    # Wider than high: the middle 8 of 10 columns, unscaled.
    pixels = np.asarray(Image.open(folder / "dogs" / "1.png"), dtype=float)[:, 1:9]
    expected = (pixels / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    image, label = stand_in.data[4]
    np.testing.assert_allclose(image, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)
    assert label == 1
    assert [stand_in.data[number][1] for number in range(6)] == [0, 0, 0, 1, 1, 1]
    assert "6 images of 2 classes, cut to 8 x 8 pixels" in err


def test_images_are_prepared_as_the_timm_model_expects(run, stand_in, tmp_path):
    folder = write_images(tmp_path / "images", n=2)
    code, _, err = run("examine", "timm:test_vit", "--data", folder)
    assert code == 0, err

    config = timm.get_pretrained_cfg("test_vit")
    image, _ = stand_in.data[0]
    assert tuple(image.shape) == config.input_size
    # Standardised by the means of the model's own configuration: black goes there.
    black = -np.array(config.mean) / np.array(config.std)
    assert (image.amin((1, 2)).numpy() >= black - 1e-6).all()
    assert stand_in.model.num_classes == 2


def test_a_folder_with_train_and_hidden_folders(examine, stand_in, tmp_path):
    write_images(tmp_path / "images" / "train", n=2)
    write_images(tmp_path / "images" / "val", n=1)
    (tmp_path / "images" / "train" / ".cache").mkdir()
    examine("Images", tmp_path / "images")
    assert len(stand_in.data) == 4
    assert [label for _, label in stand_in.settings["held_out"]] == [0, 1]


def test_parts_of_a_folder_have_the_same_classes(refused_data, tmp_path):
    write_images(tmp_path / "images" / "train", n=1)
    write_images(tmp_path / "images" / "test", n=1)
    (tmp_path / "images" / "test" / "cats").rename(tmp_path / "images" / "test" / "lynxes")
    assert "different classes, such as cats" in refused_data("Images", tmp_path / "images")


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
def test_arrays_come_as_they_are(examine, stand_in, tmp_path, names):
    x, y = np.random.default_rng(0).normal(size=(9, 4)), np.arange(9, dtype=np.int32) % 3
    np.savez(
        tmp_path / "a.npz", **dict(zip(names, (x, y), strict=True)), x_test=x[:2], y_test=y[:2]
    )
    examine("build", tmp_path / "a.npz")

    inputs, targets = stand_in.data
    np.testing.assert_array_equal(inputs.numpy(), x.astype(np.float32))
    assert targets.dtype == torch.int64
    assert targets.tolist() == y.tolist()

    inputs, targets = stand_in.settings["held_out"]
    np.testing.assert_array_equal(inputs.numpy(), x[:2].astype(np.float32))
    assert targets.tolist() == y[:2].tolist()


def test_images_of_bytes_are_scaled_and_their_channels_put_first(run, stand_in, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8)
    arrays = write_arrays(tmp_path / "a.npz", x, np.arange(5))
    code, _, err = run("examine", "torchvision:squeezenet1_1", "--data", arrays)
    assert code == 0, err

    expected = (x / 255 - IMAGENET_MEAN) / IMAGENET_STD
    inputs, _ = stand_in.data
    np.testing.assert_allclose(inputs, expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)


def test_one_number_in_a_column_is_a_label(examine, stand_in, tmp_path):
    examine("build", write_arrays(tmp_path / "a.npz", y=np.arange(12)[:, None] % 3))
    assert stand_in.data[1].shape == (12,)


def test_real_targets_need_a_loss_and_its_shape(examine, refused_data, stand_in, tmp_path):
    y = np.random.default_rng(0).normal(size=12)
    assert "--loss mse_loss" in refused_data("regression", write_arrays(tmp_path / "a.npz", y=y))

    column = write_arrays(tmp_path / "b.npz", y=y[:, None].astype(np.float32))
    examine("regression", column, "--loss", "mse_loss")
    assert stand_in.settings["loss"] is torch.nn.functional.mse_loss

    # Broadcast, every output would meet every target.
    flat = write_arrays(tmp_path / "c.npz", y=y.astype(np.float32))
    assert "y[:, None]" in refused_data("regression", flat, "--loss", "mse_loss")


def test_a_text_in_characters_bytes_and_tokens(examine, run, stand_in, tmp_path):
    alphabet = "abcdefghijklmnopqrstuvwxyz "
    text = tmp_path / "a.txt"
    text.write_text(alphabet * 4, encoding="utf-8")

    # As many characters as the model knows: numbered in their order. Windows end where the model's
    # positions end, and the next window begins there.
    examine("Characters", text, "--window", 30)
    inputs, targets = stand_in.data
    numbers = [sorted(alphabet).index(character) for character in alphabet * 4]
    assert inputs[1].tolist() == numbers[12:24]
    assert targets[1].tolist() == numbers[13:25]

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    words = ["examine", tmp_path / "gpt2", "--data", text, "--window", 10]
    code, _, err = run(*words)
    assert code == 0, err
    assert stand_in.data["input_ids"][0].tolist() == list(b"abcdefghij")
    assert torch.equal(stand_in.data["labels"], stand_in.data["input_ids"])

    tokenizer = make_tokenizer(alphabet)
    tokenizer.save_pretrained(tmp_path / "gpt2")
    code, _, err = run(*words)
    assert code == 0, err
    assert stand_in.data["input_ids"][0].tolist() == [100 + n for n in range(10)]


def make_tokenizer(alphabet):
    """Letters as tokens from 100 on."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {letter: 100 + number for number, letter in enumerate(alphabet)}
    letters = Tokenizer(models.WordLevel(vocabulary | {"?": 99}, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?")


def arrays_of(x=None, y=None, **others):
    return lambda folder: write_arrays(folder / "a.npz", x, y, **others)


def with_nan():
    x = np.ones((12, 4))
    x[7, 1] = np.nan
    return x


class Hostile:
    def __reduce__(self):
        return open, ("was_run", "w")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (arrays_of(y=np.arange(12) % 5), "expected classes 0 to 2"),  # the model has three
        (arrays_of(y=np.full(12, np.nan)), "NaN"),
        (arrays_of(with_nan()), "NaN in sample 7"),
        (arrays_of(np.ones((12, 5))), "inputs of shape (2, 5)"),
        (arrays_of(y=np.arange(9)), "has 12 inputs and 9 targets"),
        (arrays_of(np.ones((0, 4)), np.ones(0, dtype=int)), "0 inputs and 0 targets"),
        (arrays_of(np.array([Hostile()] * 12)), "it holds Python objects"),
        (arrays_of(np.array(["a"] * 12)[:, None]), "expected arrays of numbers"),
        (lambda folder: folder / "none.npz", "no file or folder"),
        (lambda folder: write_model(folder), "is in none of the forms that can be read"),
    ],
)
def test_arrays_that_make_no_sense_give_a_sentence(refused_data, tmp_path, make, sentence):
    told = refused_data("build", make(tmp_path))
    assert told.startswith(("--data", "MODEL"))
    assert sentence in told
    assert not (tmp_path / "was_run").exists()


def test_other_mistakes_about_data_give_a_sentence(refused_data, tmp_path):
    np.savez(tmp_path / "a.npz", images=np.ones(3))
    assert "has images; expected x and y" in refused_data("build", tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"PK\3\4 torn")
    assert "b.npz cannot be read: it is no .npz" in refused_data("build", tmp_path / "b.npz")

    (tmp_path / "flat").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "flat" / "1.png")
    told = refused_data("Images", tmp_path / "flat")
    assert "its images lie in no such folder" in told

    folder = write_images(tmp_path / "images", n=1)
    (folder / "cats" / "0.png").write_bytes(b"no image")
    assert "0.png is not an image that can be read" in refused_data("Images", folder)
    folder = write_images(tmp_path / "others", n=1)
    told = refused_data("Images", folder, "--mean", "0.5,0.5")
    assert told == "--mean: expected 1 or 3 numbers, one for each channel, got 2"


def test_mistakes_about_texts_give_a_sentence(refused_data, run, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("äöü" + "abcdefghijklmnopqrstuvwxyz" * 4, encoding="utf-8")
    assert "29 different characters" in refused_data("Characters", text)
    text.write_text("abc", encoding="utf-8")
    assert "expected at least 25" in refused_data("Characters", text)
    assert "has no embedding" in refused_data("build", text)
    text.write_bytes(b"\xff\xfe\x00")
    assert "is not a text in UTF-8" in refused_data("Characters", text)


def test_a_text_for_a_model_that_does_not_write_is_refused(refused, tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=300, intermediate_size=8, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "a.txt").write_text("to be or not " * 30, encoding="utf-8")
    told = refused("examine", tmp_path / "bert", "--data", tmp_path / "a.txt")
    assert "BertForSequenceClassification is not one" in told
