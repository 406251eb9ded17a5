"""Data and targets of every kind in `initial_norm` and `noise`, against losses written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.data import DataLoader

import gradients


def norm_of(model, loss):
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return sum(part.square().sum() for part in parts if part is not None).sqrt().item()


def assert_measured(found, model, loss):
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-12)
    np.testing.assert_allclose(found["norm_backbone"], norm_of(model, loss), rtol=1e-10)


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(6, 4).double()


def test_plain_classes_are_torch_s_own_mean_bit_for_bit():
    model, x = linear()
    y = torch.tensor([0, 1, 2, 1, 0, 2])
    found = gradients.initial_norm(model, (x, y), batch_size=4)
    given = gradients.initial_norm(model, (x, y), loss=F.cross_entropy, batch_size=4)
    for name in found.data_vars:
        np.testing.assert_array_equal(found[name], given[name])
    assert (found.attrs["loss"], found.attrs["targets"]) == ("cross_entropy", "classes")
    assert given.attrs["targets"] == "given to the loss"

    # int32 and (n, 1) labels; targets that do not count.
    for other in (y.int(), y[:, None]):
        same = gradients.initial_norm(model, (x, other), batch_size=4)
        np.testing.assert_allclose(same["norm_backbone"], found["norm_backbone"], rtol=1e-12)
    y[4:] = -100
    part = gradients.initial_norm(model, (x, y), batch_size=4)
    assert part.attrs["n_samples"] == 4
    assert_measured(part, model, F.cross_entropy(model(x[:4]), y[:4]))


def test_several_labels_have_sigmoid_losses():
    model, x = linear()
    y = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 0, 0], [0, 1, 1], [1, 1, 1]])
    for targets in (y, y.double()):
        found = gradients.initial_norm(model, (x, targets), batch_size=4)
        loss = F.binary_cross_entropy_with_logits(model(x), y.double())
        assert_measured(found, model, loss)
        assert found.attrs["loss"] == "binary_cross_entropy_with_logits"
        assert found.attrs["targets"] == "several labels"


def test_pixels_are_averaged_over_those_of_a_sample_that_count():
    torch.manual_seed(0)
    model, x = nn.Conv2d(2, 3, 1).double(), torch.randn(3, 2, 4, 5).double()
    y = torch.randint(3, (3, 4, 5))
    y[0, :3] = -100
    found = gradients.initial_norm(model, (x, y), batch_size=2)

    singly = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(3)]
    assert_measured(found, model, sum(singly) / 3)


def small_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config).double().eval()


def test_tokens_of_a_causal_model_are_compared_one_position_ahead_as_by_its_own_loss():
    model, ids = small_gpt2(), torch.randint(30, (4, 7))
    found = gradients.initial_norm(model, {"input_ids": ids, "labels": ids}, batch_size=3)
    assert_measured(found, model, model(ids, labels=ids).loss)
    assert found.attrs["n_samples"] == 4


def padded_batches():
    generator = torch.Generator().manual_seed(0)
    for length in (5, 7):
        ids = torch.randint(30, (2, length), generator=generator)
        yield {"input_ids": ids, "labels": torch.randint(30, (2, length), generator=generator)}


def test_batches_of_unequal_length_are_weighted_by_their_samples():
    model, batches = small_gpt2(), list(padded_batches())
    found = gradients.initial_norm(model, batches)
    losses = [model(**batch).loss for batch in batches]
    assert_measured(found, model, sum(losses) / 2)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a, b):
        return self.first(a) + self.second(b)


def test_two_inputs_are_a_tuple_in_a_pair():
    torch.manual_seed(0)
    model, a, b = Two().double(), torch.randn(6, 4).double(), torch.randn(6, 2).double()
    y = torch.arange(6) % 3
    for data in (((a, b), y), [((a, b), y)], {"a": a, "b": b, "labels": y}):
        found = gradients.initial_norm(model, data, batch_size=4)
        assert_measured(found, model, F.cross_entropy(model(a, b), y))


def test_real_numbers_and_other_nonsense_are_refused_with_the_remedy():
    model, x = linear()
    y = torch.arange(6) % 3
    refusals = [
        (torch.randn(6, 3), r"real numbers, .* loss=torch\.nn\.functional\.mse_loss"),
        (torch.full((6, 3), torch.nan), "expected targets that are numbers, got NaN"),
        (y + 1, "expected classes 0 to 2 .* got 3"),
        (y - 1, "expected classes of at least 0 .* got -1"),
        (torch.zeros(6, 2).long(), "fit no loss for outputs of shape"),
    ]
    for targets, message in refusals:
        with pytest.raises(ValueError, match=message):
            gradients.initial_norm(model, (x, targets))
    with pytest.raises(ValueError, match="for weights of float64; convert the inputs"):
        gradients.initial_norm(model, (x.float(), y))


def two_losses_of(model):
    def losses(inputs, targets):
        outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        logits = getattr(outputs, "logits", outputs)
        return logits.square().mean(), logits.sin().mean()

    return losses


def test_inputs_that_are_nan_are_refused_and_named():
    model, x = linear()
    y = torch.arange(6) % 3
    x[4, 1] = torch.nan
    message = "`data`: expected inputs that are numbers, got NaN in sample 4"
    with pytest.raises(ValueError, match=message):
        gradients.initial_norm(model, (x, y), batch_size=3)
    with pytest.raises(ValueError, match=message):
        gradients.noise(model, (x, y), two_losses_of(model), batch_size=3)


def test_noise_takes_mappings_and_loaders_of_them():
    model, ids = small_gpt2(), torch.randint(30, (6, 7))
    losses = two_losses_of(model)
    items = [{"input_ids": row, "labels": row} for row in ids]
    found = [
        gradients.noise(model, data, losses, batch_size=2)
        for data in ({"input_ids": ids, "labels": ids}, DataLoader(items, batch_size=3))
    ]
    for spread in found:
        assert (spread.attrs["n_samples"], spread.attrs["targets"]) == (6, "given to the loss")
        for batch in range(3):
            pair = losses({"input_ids": ids[2 * batch : 2 * batch + 2]}, None)
            alone = gradients.compare(model, pair)
            np.testing.assert_allclose(
                spread["cosine_total"][batch], alone["cosine_total"], rtol=1e-9
            )
