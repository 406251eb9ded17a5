"""`probes.attach(model)` without another word: layers, inputs and classes are found."""

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models.video.mvit import MSBlockConfig

import probes
from resonance_toolkit import find_blocks
from tests.helpers.state import snapshot

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


def make_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=6)
    config.bos_token_id = config.eos_token_id = 0
    return GPT2LMHeadModel(config)


def make_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=32, vocab_size=50))


def make_bert(kind="BertForTokenClassification"):
    import transformers

    config = transformers.BertConfig(**SMALL, intermediate_size=32, vocab_size=50, num_labels=4)
    return getattr(transformers, kind)(config)


def make_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        vocab_size=50,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def make_wav2vec():
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        **SMALL,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        num_labels=4,
        mask_time_prob=0.0,
    )
    return Wav2Vec2ForSequenceClassification(config)


def make_swin():
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    config.num_labels = 4
    return SwinForImageClassification(config)


class Written(nn.Module):
    """A language model as people write it: learned positions, just as many as it takes."""

    def __init__(self):
        super().__init__()
        self.block_size = 5
        self.words = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.zeros(1, 5, 8))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 20)

    def forward(self, ids):
        hidden = self.words(ids) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


# model, classes, a layer, whether targets may be of positions
MODELS = {
    "GPT-2": (make_gpt2, 50, "transformer.h.1", True),
    "Llama": (make_llama, 50, "model.layers.1", True),
    "Bert, tags": (make_bert, 4, "bert.encoder.layer.1", True),
    "Bert, classes": (
        lambda: make_bert("BertForSequenceClassification"),
        4,
        "bert.encoder.layer.1",
        False,
    ),
    "T5": (make_t5, 50, "decoder.block.0", True),
    "Wav2Vec2": (make_wav2vec, 4, "wav2vec2.encoder.layers.1", False),
    "transformers' Swin": (make_swin, 4, "swin.encoder.layers.1.blocks.0", False),
    "written by hand": (Written, 20, "blocks.1", True),
    "FCN": (
        lambda: torchvision.models.segmentation.fcn_resnet50(
            weights=None, weights_backbone=None, num_classes=6
        ),
        6,
        "backbone.layer4.2",
        True,
    ),
    "timm": (lambda: timm.create_model("resnet10t", num_classes=4), 4, "layer4.0", False),
    "MLP": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        3,
        "0",
        False,
    ),
}


@pytest.mark.parametrize("case", list(MODELS))
def test_layers_inputs_and_classes_are_found(case):
    make, classes, layer, has_positions = MODELS[case]
    torch.manual_seed(0)
    model = make()
    before = snapshot(model)

    probe = probes.attach(model, n=2)
    blocks = find_blocks(model)
    # An encoder reads a text of its own, whose positions are not those of the output.
    expected = [name for name in blocks if case != "T5" or name.startswith("decoder")]
    assert probe.layers == expected
    assert layer in probe.layers
    assert probe.settings.classes == classes
    assert f"layers found: {blocks.reason}" in repr(probe)
    assert any(pool.waits_for_targets for pool in probe.pools.values()) == has_positions

    probe.detach()
    assert snapshot(model) == before


class WithIdle(nn.Module):
    """Three parts, one of which runs in training only, one not sample by sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6))
        self.extra = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        self.table = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))

    def forward(self, x):
        hidden = self.body(x)
        if self.training:
            self.extra(hidden)
        return hidden[:, :3] + self.table(torch.ones(1, 6))


def test_found_blocks_that_cannot_be_probed_are_left_out_and_named():
    model = WithIdle()
    assert list(find_blocks(model)) == ["body", "extra", "table"]
    probe = probes.attach(model, n=2, alpha={"*": 0.5})
    assert probe.layers == ["body"]
    assert "; not extra, table, which cannot be probed\n" in repr(probe)
    model(torch.randn(2, 4))
    assert torch.isfinite(probe.loss(torch.tensor([0, 1])))

    # Named by the user, each is refused.
    with pytest.raises(ValueError, match="'extra': the layer never runs in eval mode"):
        probes.attach(model, ["body", "extra"])


def test_named_layers_have_no_reason():
    probe = probes.attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "0", n=2)
    assert "layers found" not in repr(probe)


def test_hidden_states_are_no_classes():
    with pytest.raises(ValueError, match=r"`classes`: cannot tell from hidden states of shape"):
        probes.attach(make_bert("BertModel"))
    assert probes.attach(make_bert("BertModel"), n=1, classes=3).settings.classes == 3


def test_token_ids_of_a_plain_embedding_are_guessed():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))
    assert probes.attach(model, "0", n=1).settings.classes == 3

    by_sample = probes.attach(nn.Sequential(model[1]), "0", n=1, sample=torch.zeros(2, 7, 4))
    assert by_sample.settings.classes == 3


def test_a_language_model_is_compared_one_token_ahead():
    """The targets of `probe.loss` are already shifted: those of a hand-made loop."""
    torch.manual_seed(0)
    model = make_gpt2().double().eval()
    ids = torch.randint(0, 50, (2, 6))
    probe = probes.attach(model, "transformer.h.1", n=2, loss="ce", active="all")
    hidden = []
    with model.transformer.h[1].register_forward_hook(lambda m, a, o: hidden.append(o)):
        by_labels = probe.evaluate({"input_ids": ids, "labels": ids})

    output = hidden[-1][0] if isinstance(hidden[-1], tuple) else hidden[-1]
    for branch, weight in enumerate(probe._by_layer()["transformer.h.1"].active):
        logits = output @ weight.mT
        expected = torch.stack(
            [F.cross_entropy(logits[i, t], ids[i, t + 1]) for i in range(2) for t in range(5)]
        ).mean()
        assert by_labels["loss"][0, branch].item() == pytest.approx(expected.item(), rel=1e-12)
    assert by_labels["n_targets"].item() == 10


class FirstOfMany(nn.Module):
    """A layer whose output is not one tensor."""

    def __init__(self, wrap):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.wrap = wrap

    def forward(self, x):
        hidden = self.inner(x)
        return self.wrap(hidden, hidden[:, :1] * 2)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, b],
        lambda a, b: {"hidden": a, "other": b},
        lambda a, b: (None, a, b),
        lambda a, b: ([a, b], "text"),
    ],
)
def test_the_first_tensor_of_whatever_a_layer_returns_is_probed(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = FirstOfMany(wrap)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            self.body(x)
            return self.head(self.body.inner(x))

    torch.manual_seed(0)
    model, x, y = Model().double(), torch.randn(5, 4).double(), torch.arange(5) % 3
    probe = probes.attach(model, "body", n=1, sample=x)
    model(x)
    (weight,) = probe.parameters()
    target = F.one_hot(y, 3).double()
    expected = F.binary_cross_entropy_with_logits(model.body.inner(x) @ weight[0].mT, target)
    torch.testing.assert_close(probe.loss(y), expected)


class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.rnn = kind(4, 6, **settings)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_probed_by_their_outputs(kind):
    torch.manual_seed(0)
    model, x, y = Recurrent(kind, batch_first=True), torch.randn(5, 7, 4), torch.arange(5) % 3
    probe = probes.attach(model, "rnn", n=1, sample=x)
    model(x)
    (weight,) = probe.parameters()
    features, target = model.rnn(x)[0].mean(1), F.one_hot(y, 3).float()
    expected = F.binary_cross_entropy_with_logits(features @ weight[0].mT, target)
    torch.testing.assert_close(probe.loss(y), expected)


def test_time_major_recurrent_layers_are_refused():
    class TimeMajor(Recurrent):
        def forward(self, x):
            return self.head(self.rnn(x.transpose(0, 1))[0].mean(0))

    with pytest.raises(ValueError, match="'rnn': expected one entry per sample first"):
        probes.attach(TimeMajor(nn.LSTM), "rnn", sample=torch.zeros(5, 7, 4))


FOREIGN_BLOCKS = {
    "MViT": (
        lambda: torchvision.models.video.MViT(
            spatial_size=(16, 16),
            temporal_size=4,
            block_setting=[
                MSBlockConfig(1, 8, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
                MSBlockConfig(2, 16, 16, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 1, 1]),
            ],
            residual_pool=True,
            residual_with_cls_embed=True,
            rel_pos_embed=False,
            proj_after_attn=True,
            num_classes=4,
        ),
        "blocks.*",
        torch.zeros(2, 3, 4, 16, 16),
    ),
    "HRNet": (
        lambda: timm.create_model("hrnet_w18_small", num_classes=4),
        ["stage2", "stage3", "stage4"],
        torch.zeros(2, 3, 64, 64),
    ),
}


@pytest.mark.parametrize("case", list(FOREIGN_BLOCKS))
def test_blocks_that_return_tuples_and_lists(case):
    make, layers, x = FOREIGN_BLOCKS[case]
    torch.manual_seed(0)
    model = make()
    probe = probes.attach(model, layers, n=1, sample=x)
    seen = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda m, args, output, name=name: seen.update({name: output[0]})
        )
        for name in probe.layers
    ]
    model(torch.randn_like(x))
    for hook in hooks:
        hook.remove()
    y = torch.tensor([0, 3])
    expected = 0.0
    for name in probe.layers:
        h = seen[name]
        by_kind = {"cls": h[:, 0], "mean": h.mean(1) if h.dim() == 3 else h.mean((2, 3))}
        features = by_kind[probe.pools[name].kind]
        weight = probe._by_layer()[name].active[0]
        target = F.one_hot(y, 4).float()
        expected += F.binary_cross_entropy_with_logits(features @ weight.mT, target)
    torch.testing.assert_close(probe.loss(y), expected)
