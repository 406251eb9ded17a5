"""Which tokens come before the patches, by the names of their parameters."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attention
from resonance_toolkit import CLASS_TOKEN_NAMES


class Prefixed(nn.Module):
    """Tokens of its own before those of the input, and attention among all of them."""

    def __init__(self, **counts):
        super().__init__()
        self.names = list(counts)
        for name, count in counts.items():
            self.register_parameter(name, nn.Parameter(torch.randn(1, count, 8)))

    def forward(self, x):
        prefix = [getattr(self, name).expand(len(x), -1, -1) for name in self.names]
        tokens = torch.cat([*prefix, x], 1)[:, None]
        return F.scaled_dot_product_attention(tokens, tokens, tokens)


def class_row(model, x):
    """The first row of the softmax, by hand."""
    prefix = [getattr(model, name).expand(len(x), -1, -1) for name in model.names]
    tokens = torch.cat([*prefix, x], 1)
    scores = tokens[:, :1] @ tokens.mT / tokens.size(-1) ** 0.5
    return scores.softmax(-1)[:, 0].detach().numpy()


@pytest.mark.parametrize("name", sorted(CLASS_TOKEN_NAMES))
def test_every_known_name_of_a_class_token_is_one(name):
    torch.manual_seed(0)
    model, x = Prefixed(**{name: 1}).double(), torch.randn(3, 6, 8).double()
    result = attention.capture(model, x, maps=True)

    row = class_row(model, x)
    np.testing.assert_allclose(result["prefix_mass"].values[:, 0, 0], row[:, 0], rtol=1e-12)
    patches = row[:, 1:] / row[:, 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(result["weight"].values[:, 0, 0], patches, rtol=1e-12)


def test_registers_are_left_out_but_are_no_class_token():
    model, x = Prefixed(register_tokens=4), torch.randn(3, 6, 8)
    with pytest.raises(ValueError, match="the model has no class token"):
        attention.capture(model, x)
    result = attention.capture(model, x, queries="mean")
    assert result["n_prefix"].values.tolist() == [4]
