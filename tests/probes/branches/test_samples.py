"""What a sample may be, and what a model and its layers may yield."""

from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes


class Keywords(nn.Module):
    """Takes two named inputs, as language models do."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 6)
        self.two = nn.Linear(6, 3)

    def forward(self, values, shift):
        return self.two(self.one(values) + shift)


@pytest.mark.parametrize("mapping", [dict, UserDict])  # a tokenizer's batch is a UserDict
def test_any_mapping_holds_keyword_arguments(mapping):
    torch.manual_seed(0)
    model = Keywords()
    batch = mapping(values=torch.randn(5, 4), shift=torch.randn(5, 6))
    probe = probes.attach(model, "one", n=3, sample=batch)
    assert probe.settings.classes == 3

    y = torch.arange(5) % 3
    by_keywords = probe.compression_error(batch, y)
    by_position = probe.compression_error((batch["values"], batch["shift"]), y)
    np.testing.assert_array_equal(by_keywords["cosine"], by_position["cosine"])


@pytest.mark.parametrize("real", [False, True])
def test_any_mapping_serves_a_model_that_needs_real_numbers(real):
    class Branching(Keywords):
        def forward(self, values, shift):
            sign = float(values.sum()) if real else 1.0
            return super().forward(values, shift) * (1.0 if sign > -1e9 else -1.0)

    sample = UserDict(values=torch.randn(5, 4), shift=torch.randn(5, 6))
    assert probes.attach(Branching(), "one", n=1, sample=sample).settings.classes == 3


def test_an_argument_that_is_a_list_has_one_entry_per_sample():
    class Detector(nn.Module):
        """As torchvision's: one image per entry, of any size."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.head = nn.Linear(8, 4)

        def forward(self, images):
            return self.head(self.conv(torch.stack(images)).mean((2, 3)))

    images = [torch.zeros(3, 9, 9), torch.zeros(3, 9, 9)]
    probe = probes.attach(Detector(), "conv", n=1, sample=(images,))
    assert probe._by_layer()["conv"].width == 8


class Wrapped(nn.Module):
    """Yields its logits in some wrapping, after a loss."""

    def __init__(self, wrap):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.wrap = wrap

    def forward(self, x):
        logits = self.head(self.body(x))
        return self.wrap(logits.mean(), logits)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss, logits: {"loss": loss, "logits": logits},
        lambda loss, logits: UserDict(loss=loss, logits=logits),
        lambda loss, logits: SimpleNamespace(loss=loss, logits=logits),
        lambda loss, logits: (logits, loss),
        lambda loss, logits: ((logits, loss), "text"),
    ],
)
def test_classes_are_those_of_the_logits_wherever_they_are(wrap):
    model, x = Wrapped(wrap), torch.randn(5, 4)
    probe = probes.attach(model, "body", n=3, sample=x)
    assert probe.settings.classes == 3

    # The model's own predictions serve as targets.
    y = model.head(model.body(x)).argmax(-1)
    expected = probe.compression_error(x, y)["cosine"]
    np.testing.assert_array_equal(probe.compression_error(x)["cosine"], expected)


def test_an_output_without_a_tensor_needs_a_number_of_classes():
    model, x = Wrapped(lambda loss, logits: "text"), torch.randn(5, 4)
    with pytest.raises(ValueError, match="`classes`: cannot tell from an output of type str"):
        probes.attach(model, "body", sample=x)
    assert probes.attach(model, "body", n=1, classes=7, sample=x).settings.classes == 7


class Nested(nn.Module):
    """A layer that yields its hidden state first in a tuple in a tuple, as some recurrent ones."""

    class Layer(nn.Module):
        def forward(self, x):
            return (x * 2, x * 3), "text"

    def __init__(self):
        super().__init__()
        self.layer = self.Layer()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][0])


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_tensor_of_nested_tuples_is_the_feature(compiled):
    torch._dynamo.reset()
    model, x = Nested(), torch.randn(5, 4, requires_grad=True)
    probe = probes.attach(model, "layer", n=1, sample=x)
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    call(x)
    assert torch.equal(probe._capture.features["layer"][0], x * 2)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["cls_token", "class_embedding", "cls_embed", "cls_embedding"])
def test_a_class_token_under_any_of_its_names_is_the_feature(name):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.randn(1, 1, 4)))
            self.mix = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            token = getattr(self, name).expand(len(x), -1, -1)
            return self.head(self.mix(torch.cat([token, x], 1))[:, 0])

    torch.manual_seed(0)
    model, x, y = Tokens(), torch.randn(5, 6, 4), torch.arange(5) % 3
    probe = probes.attach(model, "mix", n=1, sample=x)
    model(x)

    (weight,) = probe.parameters()
    feature = F.linear(getattr(model, name)[0], model.mix.weight, model.mix.bias).expand(5, -1)
    target = F.one_hot(y, 3).float()
    expected = F.binary_cross_entropy_with_logits(feature @ weight[0].mT, target)
    torch.testing.assert_close(probe.loss(y), expected)


def test_numbers_of_numpy_are_numbers():
    model = nn.Sequential(nn.Linear(4, 3))
    settings = {"n": np.int64(5), "active": np.int64(2), "classes": np.int32(3)}
    probe = probes.attach(model, "0", **settings)
    assert [len(parameter) for parameter in probe.parameters()] == [2]
    assert probe.n_parameters == 5 * 3 * 3

    with pytest.raises(ValueError, match="`active`: expected 0 to 5 or 'all', got True"):
        probes.attach(model, "0", n=5, active=True)
