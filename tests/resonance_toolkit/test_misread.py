"""What is easily given wrong, or read in two ways: each is understood, or told its cure."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attention
import gradients
import landscape
import nudging
from resonance_toolkit import FailedPassError, call_model, positions_that_count, take
from tests.helpers import text_models
from tests.helpers.state import snapshot

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 1])


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


VERBS = {
    "grid": lambda model, data, **more: landscape.grid(model, data, size=3, **more),
    "curvature": lambda model, data, **more: landscape.curvature(model, data, k=1, **more),
    "nudge": lambda model, data, **more: nudging.nudge(
        model, data, nudging.backprop(), "0", **more
    ),
    "initial_norm": gradients.initial_norm,
}


def whole(data, **settings):
    ((inputs, targets),) = take(data, samples=None, **settings)
    return inputs, targets


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_targets_that_are_no_numbers_are_refused_under_any_loss(verb, number):
    model, y = small_net(), torch.randn(6, 3)
    y[4, 1] = number
    before = snapshot(model)
    for loss in (F.mse_loss, lambda o, t: (o - t).square().mean(1), None):
        if verb == "initial_norm" and callable(loss) and loss is not F.mse_loss:
            continue
        with pytest.raises(ValueError, match=r"`data`: expected targets .* in sample 4; .*mask"):
            VERBS[verb](model, (X, y), loss=loss)
    assert snapshot(model) == before


def test_a_mask_beside_the_targets_is_the_cure():
    model, y = small_net(), torch.randn(6, 3)
    mask = torch.rand(6, 3) < 0.7

    def masked(outputs, targets):
        numbers, counts = targets
        return ((outputs - numbers).square() * counts).mean(1)

    expected = masked(model(X), (y, mask)).mean().item()
    data = (X, (y, mask))
    for given in ([data], [((X[:4]), (y[:4], mask[:4])), (X[4:], (y[4:], mask[4:]))]):
        surface = landscape.grid(model, given, size=3, loss=masked, method="adaptive")
        np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-5)
        result = nudging.nudge(model, given, nudging.backprop(), "0", loss=masked)
        np.testing.assert_allclose(result["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "samples",
    [
        [(x, y) for x, y in zip(X, Y.tolist(), strict=True)],
        [(x, y) for x, y in zip(X, Y, strict=True)],
        [(x, y) for x, y in zip(X.numpy(), Y.numpy(), strict=True)],
        [{"input": x, "labels": y} for x, y in zip(X, Y.tolist(), strict=True)],
    ],
    ids=["numbers", "tensors", "numpy", "mappings"],
)
def test_a_list_of_single_samples_is_a_dataset(samples):
    inputs, targets = whole(samples)
    assert torch.equal(inputs["input"] if isinstance(inputs, dict) else inputs, X)
    assert torch.equal(targets, Y)
    few = take(samples, 3, seed=5)[0]
    assert torch.equal(few[1], take((X, Y), 3, seed=5)[0][1])
    for n in (1, 2):  # a list of two is no pair
        assert torch.equal(whole(samples[:n])[1], Y[:n])


@pytest.mark.parametrize("verb", VERBS)
def test_samples_that_were_not_stacked_are_told_to_be(verb):
    samples = [(x, x[:1] + torch.zeros(4)) for x in X]
    with pytest.raises(ValueError, match=r"of single samples make a batch, torch.stack"):
        VERBS[verb](small_net(), samples, loss=F.mse_loss)
    with pytest.raises(ValueError, match=r"of single samples make a batch, torch.stack"):
        VERBS[verb](small_net(), [(x, x[:3]) for x in X], loss=F.mse_loss)


@pytest.mark.parametrize(
    "form", ["pair", "lists in a pair", "list of batches", "mapping", "lists alone"]
)
def test_labels_in_a_python_list_are_a_tensor(form):
    data = {
        "pair": (X, Y.tolist()),
        "lists in a pair": (X.tolist(), Y.tolist()),
        "list of batches": [(X[:4], Y[:4].tolist()), (X[4:], Y[4:].tolist())],
        "mapping": {"input": X, "labels": Y.tolist()},
        "lists alone": {"input": X.tolist(), "labels": Y.tolist()},
    }[form]
    inputs, targets = whole(data)
    assert torch.equal(targets, Y)
    assert torch.equal(inputs["input"] if isinstance(inputs, dict) else inputs, X)
    model = nn.Linear(4, 3)
    surface = landscape.grid(model, data, size=3)
    np.testing.assert_array_equal(surface["loss"], landscape.grid(model, (X, Y), size=3)["loss"])


def test_a_list_that_is_no_column_stays_a_setting():
    inputs, _ = whole({"input": X, "size": [3, 4], "labels": Y})
    assert inputs["size"] == (3, 4)


def test_lists_of_unequal_length_are_told_to_be_padded():
    with pytest.raises(ValueError, match=r"expected lists of equal length.* pad them"):
        take({"input_ids": [[1, 2], [3]], "labels": [0, 1]}, None)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X * 9).byte(), r"inputs of uint8 for weights of float32; .*x.to\(torch.float32\) / 255"),
        ((X * 9).long(), r"inputs of int64 for weights of float32; .*x.to\(torch.float32\)"),
        (X.double(), r"inputs of float64 for weights of float32; .*x.to\(torch.float32\)"),
        (X[:, :3], r"`data`: .*shape \((2|6), 3\).*cannot be multiplied"),
        (X.to("meta"), r"`data`: expected tensors with numbers, got some on the meta device"),
    ],
    ids=["bytes", "whole", "double", "narrow", "meta"],
)
def test_inputs_of_another_kind_get_a_sentence(verb, inputs, message):
    model = small_net()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        VERBS[verb](model, (inputs, Y))
    assert snapshot(model) == before


@pytest.mark.parametrize("verb", ["bend", "eigenvectors"])
def test_inputs_that_are_no_numbers_give_no_weights_that_are_none(verb):
    model, x = small_net(), X.clone()
    x[2, 1] = torch.nan
    calls = {
        "bend": lambda: landscape.bend(model, small_net(), (x, Y), steps=2),
        "eigenvectors": lambda: landscape.eigenvectors(model, (x, Y), k=1),
    }
    with pytest.raises(ValueError, match="expected inputs that are numbers, got NaN in sample 2"):
        calls[verb]()


def test_losses_of_one_s_own_are_told_what_they_got():
    model = small_net()

    def losses(x, y):
        outputs = model(x)
        return F.cross_entropy(outputs, y), outputs.square().mean()

    message = r"`losses`: failed on inputs of float32 \(3, 4\) and targets of int32 \(3,\): "
    with pytest.raises(ValueError, match=message):
        gradients.noise(model, (X, Y.int()), losses, batch_size=3)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_data_yet_gets_a_sentence(verb):
    with pytest.raises(TypeError, match="got the class TensorDataset: call it first"):
        VERBS[verb](small_net(), torch.utils.data.TensorDataset)
    with pytest.raises(ValueError, match=r"expected dense tensors, .* give x.to_dense\(\)"):
        VERBS[verb](small_net(), (X.to_sparse(), Y))


def test_images_of_bytes_get_a_sentence():
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"inputs of uint8 for .*x.to\(torch.float32\) / 255"):
        call_model(nn.Conv2d(3, 4, 3), images)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("first_layer", [nn.BatchNorm1d(4), nn.GELU(), nn.LayerNorm(4)])
def test_bytes_get_a_sentence_whatever_kernel_refuses_them(verb, first_layer):
    # Torch raises another class of errors where a kernel lacks a dtype.
    model = nn.Sequential(first_layer, *small_net())
    with pytest.raises(ValueError, match=r"^`data`: the forward pass failed on .* of uint8 for"):
        VERBS[verb](model, ((X * 9).byte(), Y))


def test_tokens_and_embeddings_get_a_sentence():
    table = nn.Sequential(nn.Embedding(7, 4))
    with pytest.raises(ValueError, match=r"inputs of float32 .*x.long\(\), which an embedding"):
        call_model(table, X)
    with pytest.raises(FailedPassError, match=r"they hold 7, and an embedding has 7 rows, from 0"):
        call_model(table, torch.tensor([[7]]))


def test_what_the_model_or_a_hook_raises_stays_what_it_is():
    class Unfinished(nn.Module):
        def forward(self, x):
            raise NotImplementedError("later")

    with pytest.raises(NotImplementedError, match="later"):
        call_model(Unfinished(), X)


def test_the_very_tokens_as_targets_are_the_next_ones():
    model, ids = text_models.gpt2().eval(), text_models.texts()["input_ids"].clamp(min=1)
    own = model(input_ids=ids, labels=ids).loss.item()
    attributes = set()
    for data in (
        (ids, ids),
        ((ids,), ids),
        ({"input_ids": ids}, ids.clone()),
        (ids.numpy(), ids.numpy()),
        [(ids[:2], ids[:2]), (ids[2:], ids[2:])],
        {"input_ids": ids, "labels": ids},
    ):
        surface = landscape.grid(model, data, size=3)
        # Its own loss is computed in float32.
        np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), own, rtol=1e-6)
        result = nudging.nudge(model, data, nudging.backprop(), "transformer.h.0")
        np.testing.assert_allclose(result["loss"], own, rtol=1e-6)
        norms = gradients.initial_norm(model, data)
        np.testing.assert_allclose(norms["loss"], own, rtol=1e-6)
        attributes |= {result.attrs["targets"] for result in (surface, result, norms)}
    assert attributes == {"classes: the next token"}


def test_other_targets_and_a_loss_of_one_s_own_are_taken_at_their_word():
    model, ids = text_models.gpt2().eval(), text_models.texts()["input_ids"].clamp(min=1)
    other = ids.roll(1, 1)
    expected = F.cross_entropy(model(ids).logits.mT, other).item()
    surface = landscape.grid(model, (ids, other), size=3)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-12)
    assert surface.attrs["targets"] == "classes"

    def own(model, inputs, targets):
        return model(input_ids=inputs, labels=targets).loss

    surface = landscape.grid(model, (ids, ids), size=3, loss=own)
    expected = model(input_ids=ids, labels=ids).loss.item()
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-6)

    # An encoder that fills in words sees both sides: its targets are where they stand.
    encoder = text_models.masked_bert().eval()
    surface = landscape.grid(encoder, (ids, ids), size=3)
    expected = F.cross_entropy(encoder(ids).logits.mT, ids).item()
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-12)


def test_masks_by_position_are_those_by_keyword():
    model = text_models.bert()
    padded, plain = text_models.texts(13), text_models.texts()
    by_position = (padded["input_ids"], padded["attention_mask"])
    expected = positions_that_count(padded)
    assert torch.equal(positions_that_count(by_position, model=model), expected)

    classes = torch.tensor([0, 1, 2, 1])
    ways = [({**plain}, classes), ({**padded}, classes), (by_position, classes)]
    changes, entropies = [], []
    for data in ways:
        result = nudging.nudge(
            model, data, nudging.random(1), "bert.encoder.layer.*", keep_samples=True
        )
        changes.append(result["sample_change"].values)
        entropies.append(attention.capture(model, data, queries="mean")["entropy"].values)
    for found in (changes, entropies):
        np.testing.assert_allclose(found[1], found[0], rtol=1e-8, atol=1e-14)
        np.testing.assert_allclose(found[2], found[0], rtol=1e-8, atol=1e-14)


def test_torch_s_own_encoder_takes_its_mask_by_position():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    pads = torch.zeros(3, 5, dtype=torch.bool)
    pads[1, 3:] = True
    data = ((x, None, pads), None)
    found = attention.capture(model, data, queries="mean")
    expected = attention.capture(
        model, ({"src": x, "src_key_padding_mask": pads}, None), queries="mean"
    )
    np.testing.assert_allclose(found["entropy"], expected["entropy"], rtol=1e-12)
    assert torch.equal(positions_that_count((x, None, pads), model=model), ~pads)
