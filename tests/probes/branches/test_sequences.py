"""Targets of positions meet the positions of the output: those of the decoder, not the encoder."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import probes
from tests.helpers.probe_reference import branch_loss, weights_of
from tests.helpers.text_models import VOCABULARY, t5

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def bart():
    config = transformers.BartConfig(**_SIZES, max_position_embeddings=32)
    return transformers.BartForConditionalGeneration(config)


def whisper():
    config = transformers.WhisperConfig(
        **_SIZES, max_source_positions=6, max_target_positions=20, num_mel_bins=5
    )
    return transformers.WhisperForConditionalGeneration(config)


def captioner():
    """An image encoder before a language model that looks at it."""
    vit = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
    )
    text = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, text)
    return transformers.VisionEncoderDecoderModel(config=config)


class Translator(nn.Module):
    """Torch's own encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, src, tgt):
        return self.head(self.transformer(self.embedding(src), self.embedding(tgt)))


def read(n_positions):
    return {"input_ids": torch.randint(3, VOCABULARY, (2, n_positions))}


# model, what it reads (as many positions as it writes, or others), the layers that write, and how
# the argument with the text so far is called
MODELS = {
    "T5": (t5, read, "decoder.block.*", "decoder_input_ids"),
    "Bart": (bart, read, "model.decoder.layers.*", "decoder_input_ids"),
    "Whisper": (
        whisper,
        lambda _: {"input_features": torch.randn(2, 5, 12)},
        "model.decoder.layers.*",
        "decoder_input_ids",
    ),
    "captioner": (
        captioner,
        lambda _: {"pixel_values": torch.randn(2, 3, 8, 8)},
        "decoder.transformer.h.*",
        "decoder_input_ids",
    ),
    "torch": (
        Translator,
        lambda n: {"src": torch.randint(0, VOCABULARY, (2, n))},
        "transformer.decoder.layers.*",
        "tgt",
    ),
}


def make(case, n_read, n_written):
    build, make_input, pattern, name = MODELS[case]
    torch.manual_seed(0)
    model = build().double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    inputs = {
        key: value.double() if value.is_floating_point() else value
        for key, value in make_input(n_read).items()
    }
    inputs[name] = torch.randint(3, VOCABULARY, (2, n_written))
    y = torch.randint(3, VOCABULARY, (2, n_written))
    y[0, -1] = -100
    return model, inputs, y, pattern


@pytest.mark.parametrize("n_read", [6, 9])
@pytest.mark.parametrize("case", MODELS)
def test_layers_left_out_are_those_of_the_decoder(case, n_read):
    model, inputs, y, pattern = make(case, n_read, 6)
    probe = probes.attach(model, n=2, active="all", sample=inputs)
    named = probes.attach(model, pattern, n=2, active="all", sample=inputs)
    assert probe.layers == named.layers
    assert len(probe.layers) == 2
    assert "whose positions are those of the output" in probe.reason

    outputs = {}
    for layer in probe.layers:
        module = model.get_submodule(layer)
        module.register_forward_hook(
            lambda _, __, output, layer=layer: outputs.update({layer: output})
        )
    model(**inputs)
    expected = 0.0
    for layer in probe.layers:
        hidden = outputs[layer][0] if isinstance(outputs[layer], tuple) else outputs[layer]
        rows, targets = hidden[y != -100], y[y != -100]
        expected += sum(branch_loss(rows, w, targets, "bce") for w in weights_of(probe, layer))
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)


ENCODERS = {
    "T5": "encoder.block.1",
    "Bart": "model.encoder.layers.1",
    "Whisper": "model.encoder.layers.1",
    "captioner": "encoder.layers.1",
    "torch": "transformer.encoder.layers.1",
}


@pytest.mark.parametrize("case", MODELS)
def test_targets_of_positions_are_refused_at_an_encoder_though_it_has_as_many(case):
    # Whisper's encoder halves its 12 frames; the image has 4 patches and a class token.
    n_positions = {"Whisper": 6, "captioner": 5}.get(case, 6)
    model, inputs, y, _ = make(case, n_positions, n_positions)
    probe = probes.attach(model, ENCODERS[case], n=2, sample=inputs)
    model(**inputs)
    for verb in (probe.loss, probe.measure):
        with pytest.raises(ValueError, match="this layer runs on what it reads; choose layers of"):
            verb(y)

    # Targets of samples are as good there as anywhere.
    assert torch.isfinite(probe.loss(torch.tensor([3, 4])))


def test_the_cure_for_targets_of_the_encoders_own_positions_works():
    model, inputs, _, _ = make("T5", 6, 4)
    labels = torch.randint(3, VOCABULARY, (2, 6))
    probe = probes.attach(model, "encoder.block.0", n=2, active="all", pool=lambda x: x)
    outputs = []
    model.encoder.block[0].register_forward_hook(lambda _, __, output: outputs.append(output))
    model(**inputs)
    hidden = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    weights = weights_of(probe, "encoder.block.0")
    expected = sum(branch_loss(hidden.flatten(0, 1), w, labels.flatten(), "bce") for w in weights)
    torch.testing.assert_close(probe.loss(labels), expected, **TIGHT)


def test_a_classifier_with_an_encoder_and_a_decoder_keeps_both():
    config = transformers.BartConfig(**_SIZES, max_position_embeddings=32, num_labels=3)
    model = transformers.BartForSequenceClassification(config)
    probe = probes.attach(model, n=2)
    assert len(probe.layers) == 4
    ids = torch.tensor([[5, 6, 2], [7, 8, 2]])
    model.train()(input_ids=ids)
    assert torch.isfinite(probe.loss(torch.tensor([0, 2])))


def test_a_language_model_that_sees_is_probed_where_it_writes():
    class Reader(nn.Module):
        """Looks at as many patches as it reads words."""

        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.vision_tower = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.language_model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.embedding = nn.Embedding(11, 8)
            self.head = nn.Linear(8, 11)

        def forward(self, input_ids, pixel_values, attention_mask=None):
            seen = self.vision_tower(pixel_values).mean(1, keepdim=True)
            return self.head(self.language_model(self.embedding(input_ids) + seen))

    torch.manual_seed(0)
    model = Reader()
    inputs = {"input_ids": torch.randint(0, 11, (2, 5)), "pixel_values": torch.randn(2, 5, 8)}
    y = torch.randint(0, 11, (2, 5))
    probe = probes.attach(model, n=2, sample=inputs)
    assert probe.layers == ["language_model.layers.0", "language_model.layers.1"]

    # A mask of words says nothing of patches.
    probe = probes.attach(model, "*.layers.1", n=2, pool="mean", sample=inputs)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    model(**inputs, attention_mask=mask)
    assert list(probe._capture.counts) == ["language_model.layers.1"]
    assert torch.isfinite(probe.loss(y[:, 0]))


def test_exits_of_an_encoder_decoder_are_those_of_the_decoder():
    model, inputs, y, _ = make("Bart", 6, 6)
    record = probes.record_exits(model, (inputs, y))
    assert list(record["layer"].values) == ["model.decoder.layers.0", "model.decoder.layers.1"]
    assert record.attrs["layers_reason"].endswith("whose positions are those of the output")
    model.eval()
    logits = model(**inputs).logits
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    found = torch.from_numpy(record["cross_entropy"].isel(layer=1).values)
    torch.testing.assert_close(found, expected[y.flatten() != -100].detach(), **TIGHT)
