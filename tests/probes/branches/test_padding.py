"""Padding that a mask in the model's call marks is left out wherever features are averaged."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from resonance_toolkit import positions_that_count
from tests.helpers.probe_reference import layer_loss, weights_of

ROUNDING = {"rtol": 1e-12, "atol": 1e-14}


def make_bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=40,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config).double()


class Encoder(nn.Module):
    """Torch's own encoder, whose mask is True where there is padding."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, src, src_key_padding_mask=None):
        return self.head(self.encoder(src, src_key_padding_mask=src_key_padding_mask)[:, 0])


@pytest.mark.parametrize("pool", ["auto", "mean", "spatial"])
@pytest.mark.parametrize("by_position", [False, True])
def test_a_sentence_of_bert_gives_the_same_loss_with_and_without_padding(pool, by_position):
    model, y = make_bert(), torch.tensor([2])
    probe = probes.attach(model, n=3, pool=pool)
    assert probe.layers == ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    ids = torch.randint(1, 40, (1, 7))
    padded_ids = F.pad(ids, (0, 13))
    mask = (padded_ids > 0).long()

    model(ids)
    expected = probe.loss(y)
    expected_gradients = torch.autograd.grad(expected, list(probe.parameters()))

    if by_position:
        model(padded_ids, mask)
    else:
        model(input_ids=padded_ids, attention_mask=mask)
    loss = probe.loss(y)
    torch.testing.assert_close(loss, expected, **ROUNDING)
    gradients = torch.autograd.grad(loss, list(probe.parameters()))
    torch.testing.assert_close(gradients, expected_gradients, **ROUNDING)

    # Without the mask the pads are words like others: the test would see a leak.
    model(padded_ids)
    assert abs(probe.loss(y) - expected).item() > 1e-4


def test_sentences_of_torchs_encoder_are_averaged_over_their_own_lengths():
    torch.manual_seed(0)
    model, y = Encoder().double(), torch.tensor([0, 2])
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    padding = torch.arange(6) >= torch.tensor([[4], [6]])
    x[padding] = 1e6  # whatever is there
    probe = probes.attach(model, "encoder.layers.*", n=3, active="all", sample=x)
    model(x, src_key_padding_mask=padding)
    loss = probe.loss(y)

    expected = 0.0
    for index in range(2):
        rows = []
        for sample, length in ((0, 4), (1, 6)):
            hidden = x[sample : sample + 1, :length]
            for layer in model.encoder.layers[: index + 1]:
                hidden = layer(hidden)
            rows.append(hidden.mean(1))
        weights = weights_of(probe, f"encoder.layers.{index}")
        expected = expected + layer_loss(torch.cat(rows), weights, y, "bce")
    torch.testing.assert_close(loss, expected, **ROUNDING)


def test_evaluation_heeds_masks_too():
    torch.manual_seed(0)
    model = Encoder().double()
    probe = probes.attach(model, "encoder.layers.*", n=3, sample=torch.zeros(2, 6, 8).double())
    x, y = torch.randn(4, 6, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    padded = {"src": F.pad(x, (0, 0, 0, 3), value=5.0)}
    padded["src_key_padding_mask"] = (torch.arange(9) >= 6).expand(4, 9)

    plain, masked = probe.evaluate((x, y)), probe.evaluate((padded, y))
    np.testing.assert_allclose(masked["loss"], plain["loss"], rtol=1e-10)


def test_a_decoder_has_a_mask_of_its_own():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        vocab_size=40,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).double()
    probe = probes.attach(model, ["encoder.block.0", "decoder.block.0"], n=2, pool="mean")
    ids, words, y = torch.randint(2, 40, (1, 5)), torch.randint(2, 40, (1, 5)), torch.tensor([3])

    model(input_ids=ids, decoder_input_ids=words)
    expected = probe.loss(y)

    # The encoder's mask is as long as the decoder's input, but says nothing about it.
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    longer_words = torch.cat([words, words[:, :2]], 1)
    inputs = {"input_ids": F.pad(ids, (0, 2)), "attention_mask": mask}
    model(**inputs, decoder_input_ids=longer_words)
    without_own_mask = probe._capture.counts
    assert list(without_own_mask) == ["encoder.block.0"]

    model(**inputs, decoder_input_ids=longer_words, decoder_attention_mask=mask)
    torch.testing.assert_close(probe.loss(y), expected, **ROUNDING)


@pytest.mark.parametrize("pool", ["mean", "spatial"])
def test_compiled_models_heed_masks(pool):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, y = Encoder().double(), torch.tensor([0, 2])
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    padding = torch.arange(6) >= torch.tensor([[4], [6]])
    probe = probes.attach(model, "encoder.layers.*", n=3, pool=pool, sample=x)
    model(x, src_key_padding_mask=padding)
    expected = probe.loss(y)
    torch.compile(model, backend="aot_eager", fullgraph=True)(x, src_key_padding_mask=padding)
    torch.testing.assert_close(probe.loss(y), expected, **ROUNDING)
    torch._dynamo.reset()


def test_a_mask_of_other_positions_is_not_the_layers():
    class Latents(nn.Module):
        """Reads a text into two latent positions, none of which is padding."""

        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x, attention_mask):
            return self.head(self.mix(x.unflatten(1, (2, -1)).sum(2)).mean(1))

    torch.manual_seed(0)
    model, x, y = Latents().double(), torch.randn(2, 6, 4).double(), torch.tensor([0, 1])
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    probe = probes.attach(model, "mix", n=2, active="all", sample=(x, mask))
    model(x, attention_mask=mask)
    features = model.mix(x.unflatten(1, (2, -1)).sum(2)).mean(1)
    expected = layer_loss(features, weights_of(probe, "mix"), y, "bce")
    torch.testing.assert_close(probe.loss(y), expected, **ROUNDING)


def _make_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config).double().eval()


def _mask_forms(mask):
    """The masks of a padded text in all forms that transformers take."""
    n_positions = mask.shape[1]
    causal = torch.ones(n_positions, n_positions, dtype=torch.bool).tril()
    attended = causal & mask.bool()[:, None]
    added = torch.zeros(attended.shape).double().masked_fill(~attended, -1e9)
    return {"int": mask, "bool": mask.bool(), "float": mask.double(), "4-d": added[:, None]}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", ["int", "bool", "float", "4-d"])
def test_a_text_of_gpt2_is_the_same_padded_at_either_side_with_any_mask(side, form):
    model = _make_gpt2()
    ids, y = torch.randint(1, 20, (2, 5)), torch.tensor([3, 1])
    pads = (4, 0) if side == "left" else (0, 4)
    mask = F.pad(torch.ones(2, 5, dtype=torch.long), pads)
    padded = {
        "input_ids": F.pad(ids, pads),
        "attention_mask": _mask_forms(mask)[form],
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
    }
    labels = F.pad(ids, pads, value=-100)
    # The first token is foretold by the pad before it, in the model's own loss too.
    labels[:, pads[0]] = -100

    for pool in ("mean", "cls"):
        with probes.attach(model, n=3, pool=pool, classes=4) as probe:
            model.train()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            model(input_ids=ids)
            expected = probe.loss(y, shift=False)
            model(**padded)
            torch.testing.assert_close(probe.loss(y, shift=False), expected, **ROUNDING)

    # Each position for itself, and each exit.
    with probes.attach(model, n=3, pool="spatial") as probe:
        model(input_ids=ids)
        expected = probe.loss(ids)
        model(**padded)
        torch.testing.assert_close(probe.loss(labels), expected, **ROUNDING)
    plain = probes.exits(model, {"input_ids": ids, "labels": ids})
    same = probes.exits(model, {**padded, "labels": labels})
    np.testing.assert_allclose(same["cross_entropy"], plain["cross_entropy"], rtol=1e-6)


def test_what_masks_of_attention_say_of_positions():
    real = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for form, mask in _mask_forms(real).items():
        assert torch.equal(positions_that_count({"attention_mask": mask}), real.bool()), form

    # Added to logits; nothing but zeros is no padding.
    added = torch.zeros(2, 3)
    assert positions_that_count({"attention_mask": added}).all()
    added[1, 2] = -10000
    found = positions_that_count({"attention_mask": added})
    assert found.tolist() == [[True] * 3, [True, True, False]]
    added[1, 2] = -torch.inf
    assert torch.equal(positions_that_count({"src_key_padding_mask": added}), found)

    # Of keys alone, as Bert's own extended mask is; and of several texts packed into one row.
    keys = real[:, None, None, :].bool()
    assert torch.equal(positions_that_count({"attention_mask": keys}), real.bool())
    packed = torch.block_diag(*[torch.ones(n, n).tril() for n in (2, 1, 3)])[None]
    assert positions_that_count({"attention_mask": packed}).all()
