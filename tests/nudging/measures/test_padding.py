"""A text gives the same numbers whatever it was padded to."""

import numpy as np
import pytest
import torch
from torch import nn

import nudging
from tests.helpers import text_models

CLASSES = torch.tensor([0, 1, 2, 1])
CREDITS = {
    "backprop": nudging.backprop,
    "random": lambda: nudging.random(1),
    "direct feedback": nudging.direct_feedback,
    "feedback": nudging.feedback,
    "auxiliary": lambda: nudging.auxiliary(lambda outputs, targets: outputs.logits.square().sum(1)),
}


@pytest.mark.parametrize("normalisation", ["rms", "unit", "none"])
@pytest.mark.parametrize("credit", list(CREDITS))
def test_pads_change_no_measure_of_a_model_that_ignores_them(credit, normalisation):
    model = text_models.bert()
    plain, padded = (
        nudging.measure(
            model,
            {**text_models.texts(pads), "labels": CLASSES},
            CREDITS[credit](),
            ["bert.embeddings", "bert.encoder.layer.*"],
            normalisation=normalisation,
            n_directions=4,
            keep_samples=True,
        )
        for pads in (0, 13)
    )
    assert set(plain.data_vars) == set(padded.data_vars)
    for name in plain.data_vars:
        # Correlations divide differences of losses of the order of 1e-6.
        rtol = 1e-6 if name.startswith("correlation") else 1e-8
        np.testing.assert_allclose(
            padded[name].values, plain[name].values, rtol=rtol, atol=1e-14, err_msg=name
        )


# Its blocks end without a norm, so that padding has norms of its own.
def test_pads_change_neither_audit_nor_stability():
    model = text_models.gpt2()
    values = []
    for pads in (0, 13):
        texts = text_models.texts(pads)
        labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)
        checks = nudging.audit(model, {**texts, "labels": labels}, n_batches=2, batch_size=2)
        values.append(checks["value"])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9)


# The noise of a credit bridge is drawn for every position, padded or not.
@pytest.mark.parametrize(
    "make",
    [
        lambda: nudging.StateBridge(hidden=8),
        lambda: nudging.StateBridge(hidden=8, skip=True),
        lambda: nudging.CreditBridge(hidden=8, noise=0.0),
    ],
)
def test_a_bridge_learns_the_same_from_padded_texts(make):
    model = text_models.bert()
    fits, results = [], []
    for pads in (0, 13):
        data = {**text_models.texts(pads), "labels": CLASSES}
        bridge = make()
        fits.append(bridge.fit(model, data, epochs=3, batch_size=2)["loss"])
        results.append(nudging.measure(model, data, bridge, n_directions=2))
    np.testing.assert_allclose(fits[1], fits[0], rtol=1e-8)
    for name in ("loss_change", "cosine", "credit_norm"):
        np.testing.assert_allclose(results[1][name], results[0][name], rtol=1e-6, err_msg=name)


# The model is blind to the padding, and the credit is not: nothing of it may be seen.
def test_what_a_credit_says_about_padding_is_not_heeded():
    def loud(state):
        credit = state.gradient()
        for name, tensor in credit.items():
            tensor[~state.positions(name)] = float("inf")
        return credit

    model = text_models.bert()
    data = {**text_models.texts(3), "labels": CLASSES}
    expected, result = (
        nudging.measure(model, data, credit, n_directions=2)
        for credit in (nudging.backprop(), loud)
    )
    for name in expected.data_vars:
        np.testing.assert_array_equal(result[name].values, expected[name].values, err_msg=name)


def test_the_root_mean_square_is_over_positions_that_count():
    model = text_models.masked_bert()
    texts = text_models.texts(13)
    labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)
    state = nudging.observe(model, texts, labels, "bert.encoder.layer.1")
    gradient = state.gradient()["bert.encoder.layer.1"]

    result = nudging.nudge(
        model, (texts, labels), nudging.backprop(), "bert.encoder.layer.1", keep_samples=True
    )
    # To first order the change is -eta <g, g> / rms(g), by an explicit loop over texts.
    predicted = []
    for row, length in enumerate(text_models.LENGTHS):
        numbers = gradient[row, :length].flatten().numpy()
        predicted.append(-0.01 * (numbers**2).sum() / np.sqrt((numbers**2).mean()))
    np.testing.assert_allclose(result["predicted_change"][0, 0], np.mean(predicted), rtol=1e-12)


class Reader(nn.Module):
    """Torch's own encoder, which marks padding by True, and makes nested tensors in eval mode."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(text_models.VOCABULARY, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, src_key_padding_mask):
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=src_key_padding_mask)
        return self.head(hidden[:, 0])


@pytest.mark.parametrize("credit", ["backprop", "random"])
def test_the_masks_of_torch_are_heeded(credit):
    torch.manual_seed(0)
    model = Reader().double()
    results = []
    for pads in (0, 13):
        texts = text_models.texts(pads)
        inputs = {
            "tokens": texts["input_ids"],
            "src_key_padding_mask": texts["attention_mask"] == 0,
        }
        data = inputs, CLASSES
        results.append(nudging.measure(model, data, CREDITS[credit](), n_directions=2))
    for name in ("loss_change", "cosine", "hidden_norm", "correlation"):
        np.testing.assert_allclose(results[1][name], results[0][name], rtol=1e-6, err_msg=name)
    assert results[0].attrs["blocks"] == "encoder.layers.0, encoder.layers.1"
    assert model.encoder.use_nested_tensor


def test_both_sequences_of_an_encoder_decoder_have_their_own_padding():
    model = text_models.t5()
    texts = text_models.texts(lengths=(6, 3, 5, 6))
    labels = text_models.texts(lengths=(4, 6, 2, 6))["input_ids"]
    labels = labels.masked_fill(labels == 0, -100)

    # Equally long here, so that the shapes do not tell which mask belongs to which.
    state = nudging.observe(
        model, {**texts, "decoder_input_ids": labels.clamp(min=0)}, labels, "**.block.*"
    )
    for block, positions in {name: state.positions(name) for name in state.blocks}.items():
        expected = labels != -100 if block.startswith("decoder") else texts["attention_mask"] == 1
        assert torch.equal(positions, expected), block
