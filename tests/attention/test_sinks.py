"""Sinks of networks that were built to have them, and of maps written out."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attention

T, HEADS = 9, 4


class Attention(nn.Module):
    """Heads that give one key a logit, whatever the query: `logit[head]` to `key[head]`."""

    def __init__(self, keys, logits, *, causal=False):
        super().__init__()
        self.keys, self.logits, self.causal = keys, logits, causal

    def forward(self, x):
        n, t, _ = x.shape
        query = torch.ones(n, len(self.keys), t, 1, dtype=x.dtype)
        key = torch.zeros(n, len(self.keys), t, 1, dtype=x.dtype)
        for head, (position, logit) in enumerate(zip(self.keys, self.logits, strict=True)):
            key[:, head, position] = logit
        value = x[:, None].expand(-1, len(self.keys), -1, -1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, scale=1.0)
        return mixed.mean(1)


class Block(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.mix = nn.Linear(6, 6).double()
        self.attn = attn

    def forward(self, x):
        return x + 0 * self.attn(self.mix(x))  # what is carried from block to block stays as it is


class Network(nn.Module):
    """Two blocks; token 3 of the input carries a large number."""

    def __init__(self, *attentions, large=5000.0):
        super().__init__()
        self.blocks = nn.ModuleList([Block(attn) for attn in attentions])
        self.head = nn.Linear(6, 2).double()
        self.large = large

    def forward(self, x):
        x = x.clone()
        x[:, 3, 0] = self.large
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def tokens(n=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, T, 6, generator=generator, dtype=torch.float64)


def softmax_weight(logit, n_keys):
    return math.exp(logit) / (math.exp(logit) + n_keys - 1)


def test_a_built_sink_is_found_where_it_was_built():
    logits = (4.0, 0.5, 3.0, 2.0)
    network = Network(
        Attention((3, 3, 0, 8), logits), Attention((0, 0, 0, 0), (0.0, 0.0, 0.0, 5.0))
    )
    x = tokens()

    result = attention.sinks(network, x, threshold=0.4)

    first, second = result["layer"].values
    expected = [softmax_weight(logit, T) for logit in logits]
    for head, weight in enumerate(expected):
        here = result.sel(layer=first, head=head)
        np.testing.assert_allclose(here["sink_weight"], weight, rtol=1e-6)
    np.testing.assert_array_equal(result["sink_key"].sel(layer=first)[0], [3, 3, 0, 8])
    # Weights .87, .17, .72, .48: three of four heads are above the threshold, one at position 0.
    np.testing.assert_allclose(result["sink_share"].sel(layer=first), 0.75)
    np.testing.assert_allclose(result["first_sink_share"].sel(layer=first), 0.25)
    np.testing.assert_allclose(result["sink_share"].sel(layer=second), 0.25)
    np.testing.assert_allclose(result["first_weight"].sel(layer=second, head=0), 1 / T)


def test_massive_activations_are_those_of_the_token():
    network = Network(Attention((3, 0), (5.0, 5.0)), Attention((3, 3), (5.0, 5.0)))
    x = tokens()
    result = attention.sinks(network, x)

    carried = x.clone()
    carried[:, 3, 0] = 5000.0
    magnitudes = carried.abs()
    # torch's median of an even number is the lower of both in the middle.
    medians = magnitudes.flatten(1).sort(1).values[:, (T * 6 - 1) // 2]
    at_sink = 5000 / medians
    at_first = magnitudes[:, 0].amax(1) / medians
    layer = result["layer"].values[0]
    here = result.sel(layer=layer)
    np.testing.assert_allclose(here["sink_activation"].sel(head=0), at_sink, rtol=1e-6)
    np.testing.assert_allclose(here["sink_activation"].sel(head=1), at_first, rtol=1e-6)
    np.testing.assert_allclose(here["largest_activation"], at_sink, rtol=1e-6)
    np.testing.assert_allclose(result["massive_share"], 1)

    calm = attention.sinks(Network(Attention((3, 0), (5.0, 5.0)), large=1.0), x)
    np.testing.assert_allclose(calm["massive_share"], 0)


class Stage(nn.Module):
    """Two blocks, between which token 2 is given a large number."""

    def __init__(self, *attentions):
        super().__init__()
        self.blocks = nn.ModuleList([Block(attn) for attn in attentions])

    def forward(self, x):
        x = self.blocks[0](x).clone()
        x[:, 2, 1] = 7000.0
        return self.blocks[1](x)


def test_activations_are_those_of_the_innermost_block():
    model = nn.Module()
    model.stages = nn.ModuleList([Stage(Attention((2,), (5.0,)), Attention((2,), (5.0,)))])
    model.forward = lambda x: model.stages[0](x)

    result = attention.sinks(model, tokens())

    before, after = (result.sel(layer=layer) for layer in result["layer"].values)
    assert (before["largest_activation"] < 100).all()
    assert (after["sink_activation"] > 5000).all()
    assert (before["massive_share"].item(), after["massive_share"].item()) == (0, 1)


def test_under_a_causal_mask_the_mean_is_over_queries_that_see_the_key():
    logit = 2.0
    network = Network(Attention((0, 4, 7), (logit, logit, 9.0), causal=True))
    result = attention.sinks(network, tokens())

    def mean_weight(position):
        weights = [softmax_weight(logit, query + 1) for query in range(position, T)]
        return np.mean(weights)

    here = result.isel(layer=0)
    np.testing.assert_allclose(here["first_weight"].sel(head=0), mean_weight(0), rtol=1e-6)
    np.testing.assert_allclose(here["sink_weight"].sel(head=1), mean_weight(4), rtol=1e-6)
    np.testing.assert_array_equal(here["sink_key"].sel(head=1), 4)
    # Two queries of nine see the last key but one: too few to call it a sink.
    assert (here["sink_key"].sel(head=2) != 7).all()


def test_batches_make_no_difference():
    network = Network(Attention((3, 0), (1.0, 2.0)), Attention((3, 5), (5.0, 1.0)))
    x = tokens(7)
    at_once = attention.sinks(network, x)
    in_batches = attention.sinks(network, (x, None), samples=7, batch_size=3)
    for name in at_once.data_vars:
        np.testing.assert_allclose(in_batches[name], at_once[name], rtol=1e-12)


def test_padding_is_no_query_and_no_sink():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    ids = torch.arange(1, 7)[None]
    alone = attention.sinks(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    padded = {
        "input_ids": F.pad(ids, (0, 4)),
        "attention_mask": F.pad(torch.ones_like(ids), (0, 4)),
    }
    with_padding = attention.sinks(model, padded)
    for name in ("sink_weight", "sink_key", "first_weight", "sink_share"):
        np.testing.assert_allclose(with_padding[name], alone[name], rtol=1e-5)


class AttentionAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_a_model_without_blocks_has_no_activations_to_show():
    result = attention.sinks(AttentionAlone(), torch.randn(2, 5, 8))
    assert result["largest_activation"].isnull().all()
    assert result["sink_weight"].notnull().all()


def test_what_does_not_fit_is_refused():
    network = Network(Attention((3,), (1.0,)))
    with pytest.raises(ValueError, match="`threshold`"):
        attention.sinks(network, tokens(), threshold=1.5)
    with pytest.raises(ValueError, match="`massive`"):
        attention.sinks(network, tokens(), massive=-1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(ValueError, match=r"`data`: the forward pass failed on .* dimension of 8"):
        attention.sinks(layer, torch.randn(2, 5, 4))
    with pytest.raises(ValueError, match="no attention"):
        attention.sinks(nn.Linear(6, 2).double(), tokens())
