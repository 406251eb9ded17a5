"""Data as users have it: every form gives what a plain pair, or a loop by hand, gives."""

from types import MappingProxyType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nudging
import tests.helpers.nudging_models as nets
from tests.helpers import text_models
from tests.helpers.nudging_by_hand import nudge_by_hand

X, Y = nets.batch(10, dtype=torch.float64)
MODEL = nets.make(nets.ResMLP, dtype=torch.float64)
PLAIN = nudging.nudge(MODEL, (X, Y), nudging.backprop(), "blocks.*", batch_size=4)

FORMS = {
    "numpy": (X.numpy(), Y.numpy()),
    "numpy of single precision": (X.numpy(), Y.numpy().astype(np.int32)),
    "int32": (X, Y.int()),
    "labels (n, 1)": (X, Y[:, None]),
    "one-hot integers": (X, F.one_hot(Y, 5)),
    "positionals": ((X,), Y),
    "keywords": ({"x": X}, Y),
    "mapping with labels": {"x": X, "labels": Y, "unknown": X},
    "any mapping": MappingProxyType({"x": X, "label": Y}),
    "list of batches": [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "dataset": TensorDataset(X, Y),
    "loader of dicts": DataLoader(
        [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)], batch_size=4
    ),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_gives_what_a_pair_gives(form):
    result = nudging.nudge(MODEL, FORMS[form], nudging.backprop(), "blocks.*", batch_size=4)
    np.testing.assert_allclose(result["loss_change"], PLAIN["loss_change"], rtol=1e-12)
    assert result.attrs["loss"] == "cross_entropy"
    expected = "distributions" if form == "one-hot integers" else "classes"
    assert result.attrs["targets"] == expected


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)
        self.mixed, self.head = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x1, x2, scale=1.0):
        return {"logits": self.head(scale * self.mixed(self.left(x1) * self.right(x2)).tanh())}


@pytest.mark.parametrize("form", ["positionals", "keywords"])
@pytest.mark.parametrize("credit", [nudging.backprop(), nudging.direct_feedback()])
def test_two_inputs_and_outputs_in_a_mapping(form, credit):
    model = nets.make(Two, dtype=torch.float64)
    x1, x2 = X[:, :3], X[:, 3:5]
    data = ((x1, x2), Y) if form == "positionals" else {"x1": x1, "x2": x2, "labels": Y}
    result = nudging.nudge(model, data, credit, "mixed", keep_samples=True)

    if credit is nudging.backprop:
        for sample in range(10):
            row = slice(sample, sample + 1)
            by_hand = nudge_by_hand(
                model,
                lambda row=row: model(x1[row], x2[row])["logits"],
                lambda logits, row=row: F.cross_entropy(logits, Y[row]),
                "mixed",
                0.01,
            )
            np.testing.assert_allclose(
                result["sample_change"][0, 0, sample], by_hand, rtol=1e-9, atol=1e-15
            )
    else:
        error = torch.softmax(model(x1, x2)["logits"], 1) - F.one_hot(Y, 5)
        state = nudging.observe(model, (x1, x2), Y, "mixed")
        expected = error @ credit.matrices["mixed"].double().T
        torch.testing.assert_close(credit(state)["mixed"], expected.detach())


def own_loss(model, inputs, labels):
    return lambda: model(**inputs, labels=labels).loss


def cut(texts, row):
    length = int(texts["attention_mask"][row].sum())
    return {name: tensor[row : row + 1, :length] for name, tensor in texts.items()}


# The model's own loss of one text alone, unpadded, by plain hooks. The causal one is computed in
# single precision, whatever the model's is.
@pytest.mark.parametrize("build", [text_models.masked_bert, text_models.gpt2, text_models.t5])
def test_tokens_are_compared_as_the_model_s_own_loss_compares_them(build):
    model = build().eval()
    rtol = 1e-4 if build is text_models.gpt2 else 1e-8
    texts = text_models.texts(pads=2)
    labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)
    if build is text_models.masked_bert:
        labels[:, 1] = -100
    result = nudging.nudge(
        model, {**texts, "labels": labels}, nudging.backprop(), keep_samples=True
    )
    assert result.attrs["loss"] == "cross_entropy"
    is_next = build is text_models.gpt2
    assert result.attrs["targets"] == ("classes: the next token" if is_next else "classes")
    assert result.attrs["n_samples"] == len(labels)

    own_losses = []
    for row, length in enumerate(text_models.LENGTHS):
        call = own_loss(model, cut(texts, row), labels[row : row + 1, :length])
        own_losses.append(float(call().detach()))
        for block in result["layer"].values:
            by_hand = nudge_by_hand(model, call, lambda loss: loss, block, 0.01)
            change = result["sample_change"].sel(layer=block)[0, row]
            np.testing.assert_allclose(change, by_hand, rtol=rtol, atol=1e-3 * rtol)
    np.testing.assert_allclose(result["loss"], np.mean(own_losses), rtol=1e-2 * rtol)


def test_batches_padded_to_unequal_lengths_stay_apart():
    model = text_models.bert()
    texts, y = text_models.texts(), torch.tensor([0, 1, 2, 1])
    alone = [{**cut(texts, row), "labels": y[row : row + 1]} for row in range(len(y))]
    together = {**texts, "labels": y}
    for verb, options in (
        (nudging.measure, {"credit": nudging.backprop(), "n_directions": 3}),
        (nudging.measure, {"credit": nudging.random(2), "n_directions": 3}),
        (nudging.stability, {"n_batches": 4, "batch_size": 1}),
    ):
        expected = verb(model, together, **options)
        result = verb(model, alone, **options)
        assert result.attrs["n_samples"] == 4
        for name in ("loss_change", "cosine", "correlation", "stability"):
            if name in expected:
                np.testing.assert_allclose(result[name], expected[name], rtol=1e-6, err_msg=name)

    bridge = nudging.StateBridge(hidden=4)
    fit = bridge.fit(model, alone, epochs=2, batch_size=2)
    assert fit.attrs["n_samples"] == 4
    assert np.isfinite(fit["loss"]).all()


def test_too_few_batches_of_one_length_are_named():
    model = text_models.bert()
    texts, y = text_models.texts(), torch.tensor([0, 1, 2, 1])
    alone = [{**cut(texts, row), "labels": y[row : row + 1]} for row in range(len(y))]
    with pytest.warns(UserWarning, match="expected 2 batches of 2 samples of one shape"):
        result = nudging.stability(model, alone, n_batches=2, batch_size=2)
    assert result["stability"].isnull().all()


def test_samples_without_a_target_that_counts_are_left_out():
    y = Y.clone()
    y[[1, 2, 7]] = -100
    keep = y != -100
    # In batches of 4, which are filled up again: bit for bit, sums depend on the size of a batch.
    result, expected = (
        nudging.nudge(MODEL, data, nudging.backprop(), "blocks.*", batch_size=4, keep_samples=True)
        for data in ((X, y), (X[keep], y[keep]))
    )
    assert result.identical(expected)
    assert result.attrs["n_samples"] == 7


@pytest.mark.parametrize("kind", ["several labels", "distributions"])
def test_rows_of_numbers_mean_several_labels_or_distributions(kind):
    shares = (X[:, :5] > 0).double() if kind == "several labels" else torch.softmax(X[:, :5], 1)
    result = nudging.nudge(MODEL, (X, shares), nudging.backprop(), "blocks.*", keep_samples=True)
    loss = F.binary_cross_entropy_with_logits if kind == "several labels" else F.cross_entropy
    for sample in range(10):
        row = slice(sample, sample + 1)
        by_hand = nudge_by_hand(
            MODEL,
            lambda row=row: MODEL(X[row]),
            lambda logits, row=row: loss(logits, shares[row]),
            "blocks.2",
            0.01,
        )
        change = result["sample_change"].sel(layer="blocks.2")[0, sample]
        np.testing.assert_allclose(change, by_hand, rtol=1e-9, atol=1e-15)
    assert result.attrs["targets"] == kind
    assert result.attrs["loss"] == loss.__name__


def test_a_loss_of_torch_finds_the_class_axis_of_a_language_model():
    model, texts = text_models.gpt2(), text_models.texts()
    loss = nn.CrossEntropyLoss(ignore_index=0)
    targets = texts["input_ids"].int()
    result = nudging.nudge(model, (texts, targets), nudging.backprop(), loss=loss)
    logits = model.eval()(**texts).logits.detach()
    by_text = [loss(logits[row], texts["input_ids"][row]).item() for row in range(len(targets))]
    np.testing.assert_allclose(result["loss"], np.mean(by_text), rtol=1e-12)
    assert result.attrs["targets"] == "given to the loss"


def test_a_tokenizer_s_mapping_can_be_observed():
    model, texts = text_models.bert(), text_models.texts()
    encoding = transformers.BatchEncoding(texts)
    state = nudging.observe(model, encoding, torch.tensor([0, 1, 2, 1]))
    torch.testing.assert_close(state.outputs.logits, model.eval()(**texts).logits.detach())
    assert state.blocks == ("bert.encoder.layer.0", "bert.encoder.layer.1")
    assert torch.equal(state.positions(state.blocks[0]), texts["attention_mask"] == 1)
