"""The datasets of Hugging Face themselves: every verb reads them as it reads tensors."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import attention
import gradients
import landscape
import nudging
import probes
from resonance_toolkit import take
from tests.helpers import text_models

TEXTS = text_models.texts()
CLASSES = torch.tensor([0, 1, 2, 1])
BATCH = {**TEXTS, "labels": CLASSES}
BLOCKS = "bert.encoder.layer.*"

VERBS = {
    "probes": lambda model, data: probes.exits(model, data, BLOCKS, samples=None),
    "landscape": lambda model, data: landscape.grid(model, data, size=3),
    "gradients": lambda model, data: gradients.initial_norm(model, data),
    "attention": lambda model, data: attention.capture(model, data),
    "nudging": lambda model, data: nudging.nudge(model, data, nudging.backprop(), BLOCKS),
}


@pytest.fixture(scope="module")
def rows():
    columns = {name: values.tolist() for name, values in TEXTS.items()}
    words = ["no", "numbers", "in", "here"]
    return datasets.Dataset.from_dict(columns | {"label": CLASSES.tolist(), "text": words})


FORMS = {
    "python lists": lambda rows: rows,
    "torch": lambda rows: rows.with_format("torch"),
    "numpy": lambda rows: rows.with_format("numpy"),
    "streamed": lambda rows: rows.to_iterable_dataset(),
    "streamed torch": lambda rows: rows.to_iterable_dataset().with_format("torch"),
    "loader": lambda rows: DataLoader(rows.with_format("torch"), batch_size=3),
    "a slice": lambda rows: rows[:],
    "a list of rows": list,
    "a split": lambda rows: datasets.DatasetDict(train=rows)["train"],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_samples(rows, form):
    ((inputs, targets),) = take(FORMS[form](rows), None, model=text_models.bert())
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert all(torch.equal(inputs[name], TEXTS[name]) for name in inputs)
    assert torch.equal(targets, CLASSES)


@pytest.mark.parametrize("form", ["python lists", "torch", "streamed"])
@pytest.mark.parametrize("package", VERBS)
def test_every_package_reads_them_as_it_reads_tensors(rows, package, form):
    model = text_models.bert()
    found = VERBS[package](model, FORMS[form](rows))
    expected = VERBS[package](model, BATCH)
    for name in expected.data_vars:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, err_msg=name)


@pytest.mark.parametrize("package", VERBS)
def test_several_splits_are_told_to_be_one(rows, package):
    splits = datasets.DatasetDict(train=rows, test=rows)
    message = r"got a DatasetDict of train, test; choose one, such as data\['train'\]"
    with pytest.raises(TypeError, match=message):
        VERBS[package](text_models.bert(), splits)


def test_pictures_are_told_to_become_tensors():
    picture = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    pictures = datasets.Dataset.from_dict({"input": [picture] * 4, "label": CLASSES.tolist()})
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    pairs = [(row["input"], row["label"]) for row in pictures]
    for data in (pictures, pictures.to_iterable_dataset(), pairs):
        with pytest.raises(TypeError, match=r"got PIL images; .*transforms.ToTensor\(\)"):
            landscape.grid(model, data)

    # With the format of torch they are tensors of bytes.
    with pytest.raises(ValueError, match=r"inputs of uint8 .*x.to\(torch.float32\) / 255"):
        landscape.grid(model, pictures.with_format("torch"))

    def to_tensors(columns):
        tensors = [torch.from_numpy(np.array(p)).movedim(-1, 0) / 255 for p in columns["input"]]
        return columns | {"input": tensors}

    surface = landscape.grid(model, pictures.with_transform(to_tensors), size=3)
    expected = landscape.grid(model, (torch.zeros(4, 3, 8, 8), CLASSES), size=3)
    np.testing.assert_array_equal(surface["loss"], expected["loss"])


def test_columns_of_other_names_and_rows_of_other_lengths_are_told_so(rows):
    model = nn.Sequential(nn.Linear(9, 3))
    with pytest.raises(TypeError, match=r"takes \(input\), got input_ids, .*rename them"):
        take(rows, None, model=model)
    ragged = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]], "label": [0, 1]})
    with pytest.raises(ValueError, match=r"`data` at 'input_ids': expected samples of one .*pad"):
        take(ragged, None, model=text_models.bert())
    unlabelled = rows.remove_columns("label")
    with pytest.raises(TypeError, match=r"a mapping with 'labels' .*got the keys input_ids"):
        landscape.grid(text_models.bert(), unlabelled)
