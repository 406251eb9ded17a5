import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

from resonance_toolkit import find_blocks

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 40}

# The first and the last block, and how many: as the authors of each family count them.
TIMM = {
    "vit_tiny_patch16_224": ("blocks.0", "blocks.11", 12),
    "resnet18": ("layer1.0", "layer4.1", 8),
    "resnet152": ("layer1", "layer4", 4),
    "swin_tiny_patch4_window7_224": ("layers.0.blocks.0", "layers.3.blocks.1", 12),
    "convnext_tiny": ("stages.0.blocks.0", "stages.3.blocks.2", 18),
    "efficientnet_b0": ("blocks.0.0", "blocks.6.0", 16),
    "mixer_b16_224": ("blocks.0", "blocks.11", 12),
    "densenet121": ("features.denseblock1", "features.denseblock4", 4),
    "inception_v3": ("Mixed_5b", "Mixed_7c", 11),
    "coatnet_0_rw_224": ("stages.0.blocks.0", "stages.3.blocks.1", 14),
    "cait_xxs24_224": ("blocks.0", "blocks.23", 24),
    "maxvit_tiny_tf_224": ("stages.0.blocks.0", "stages.3.blocks.1", 11),
    "levit_128": ("stages.0.blocks.0", "stages.2.blocks.3", 12),
    "twins_svt_small": ("blocks.0.0", "blocks.3.3", 18),
    "tresnet_m": ("body.layer1.0", "body.layer4.2", 21),
    "vgg11": ("features.0", "pre_logits.fc2", 10),
    "mambaout_tiny": ("stages.0.blocks.0", "stages.3.blocks.2", 18),
}
TORCHVISION = {
    "mobilenet_v2": ("features.1", "features.17", 17),
    "googlenet": ("inception3a", "inception5b", 9),
    "shufflenet_v2_x1_0": ("stage2.0", "stage4.3", 16),
    "vit_b_16": ("encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_11", 12),
    "fcn_resnet50": ("backbone.layer1.0", "backbone.layer4.2", 16),
}
TRANSFORMERS = {
    "bert": ("bert.encoder.layer.0", "bert.encoder.layer.2", 3),
    "gpt2": ("transformer.h.0", "transformer.h.2", 3),
    "t5": ("encoder.block.0", "decoder.block.2", 6),
    "llama": ("model.layers.0", "model.layers.2", 3),
}


def build(name):
    if name in TIMM:
        return timm.create_model(name)
    if name in TORCHVISION:
        weights = {"weights": None, "weights_backbone": None} if "fcn" in name else {}
        settings = {"init_weights": False} if name == "googlenet" else {}
        return torchvision.models.get_model(name, **weights, **settings)
    if name == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=40)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.T5Config(d_model=16, d_ff=32, d_kv=8, num_layers=3, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*TIMM, *TORCHVISION, *TRANSFORMERS])
def test_blocks_of_the_families(name):
    with torch.device("meta"):
        model = build(name)
    blocks = find_blocks(model)
    names = list(blocks)
    assert (names[0], names[-1], len(names)) == (TIMM | TORCHVISION | TRANSFORMERS)[name]
    assert all(model.get_submodule(name) is module for name, module in blocks.items())


class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
            for _ in range(3)
        )
        self.head = nn.Linear(8, 2)


def test_a_hand_written_net_by_its_repeated_part_wrapped_or_not():
    for model in (HandWritten(), torch.compile(HandWritten()), nn.DataParallel(HandWritten())):
        blocks = find_blocks(model)
        assert list(blocks) == ["layers.0", "layers.1", "layers.2"]
        assert repr(blocks) == (
            "Blocks(layers.0, layers.1, layers.2: 3 modules of class Sequential)"
        )


def test_a_plain_perceptron_gives_its_layers_but_the_last():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    blocks = find_blocks(model)
    assert list(blocks) == ["0", "2"]
    assert blocks.reason == "no module is repeated; every layer with weights but the last"


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.ReLU(), nn.Sequential()])
def test_a_model_without_blocks_is_told_to_name_layers(model):
    with pytest.raises(ValueError, match=r"`model`: expected repeated blocks .* name the layers"):
        find_blocks(model)


class Recurrence(nn.Sequential):
    pass


class Attention(nn.Sequential):
    pass


def test_a_list_of_blocks_of_two_classes_is_one_series():
    kinds = (Recurrence, Attention, Recurrence)
    blocks = nn.ModuleList(kind(nn.Linear(4, 8), nn.Linear(8, 4)) for kind in kinds)
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "blocks": blocks, "head": nn.Linear(4, 2)})
    assert list(find_blocks(model)) == ["blocks.0", "blocks.1", "blocks.2"]


def test_embeddings_are_no_layers_to_attach_to():
    model = nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    assert list(find_blocks(model)) == ["1", "2"]


class AttendingOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.embed(x)
        mixed, _ = self.attention(hidden, hidden, hidden)
        return self.head(mixed.mean(1))


def test_torchs_attention_is_one_layer_whose_insides_are_never_called():
    model = AttendingOnce()
    called = set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    model(torch.randn(2, 5, 4))

    blocks = find_blocks(model)
    assert list(blocks) == ["embed", "attention"]
    assert set(blocks) <= called
