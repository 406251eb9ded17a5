"""What `probes.attach` finds in real and in awkward models, without harm to any."""

import random

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import probes
from tests.helpers.probe_reference import layer_loss, weights_of
from tests.helpers.state import snapshot
from tests.helpers.two_streams import OfTwoStreams


def tv(name, **settings):
    return lambda: getattr(torchvision.models, name)(weights=None, **settings)


def tm(name, **settings):
    return lambda: timm.create_model(name, **settings)


# model, layers, (pool, width) of the last attachment point
ZOO = {
    "timm ViT": (tm("vit_tiny_patch16_224", depth=2), "blocks.*", ("cls", 192)),
    "timm ViT, pooled": (
        tm("vit_tiny_patch16_224", depth=2, global_pool="avg", class_token=False),
        "blocks.*",
        ("mean", 192),
    ),
    "timm DeiT, distilled": (tm("deit_tiny_distilled_patch16_224"), "blocks.0", ("cls", 192)),
    "timm Swin": (tm("swin_tiny_patch4_window7_224", depths=(1,) * 4), "layers.*", ("mean", 768)),
    "timm ConvNeXt": (tm("convnext_atto"), "stages.*", ("mean", 320)),
    "timm CoAtNet": (tm("coatnet_nano_rw_224"), "stages.*", ("mean", 512)),
    "timm Mixer": (tm("mixer_s32_224"), "blocks.*", ("mean", 512)),
    "timm TNT": (tm("tnt_s_patch16_224", depth=2), "blocks.*", ("cls", 384)),
    "timm CaiT": (tm("cait_xxs24_224", depth=2), "blocks.*", ("mean", 192)),
    "timm ResNet": (tm("resnet18"), "layer[1-4]", ("mean", 512)),
    "timm PVT": (tm("pvt_v2_b0"), "stages.*", ("mean", 256)),
    "timm LeViT": (tm("levit_128s"), "stages.*", ("mean", 384)),
    "timm EfficientNet": (tm("efficientnet_b0"), "blocks.*", ("mean", 320)),
    "torchvision ViT": (
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32),
        "encoder.layers.*",
        ("cls", 16),
    ),
    "torchvision Swin": (tv("swin_t"), "features.*", ("mean", 768)),
    "torchvision ResNet": (tv("resnet18"), "layer*", ("mean", 512)),
    "torchvision ConvNeXt": (tv("convnext_tiny"), "features.*", ("mean", 768)),
    "torchvision DenseNet": (tv("densenet121"), "features.denseblock*", ("mean", 1024)),
    "torchvision MaxViT": (tv("maxvit_t"), "blocks.*", ("mean", 512)),
    "torchvision GoogLeNet": (tv("googlenet", init_weights=False), "inception*", ("mean", 1024)),
    "torchvision video ResNet": (
        lambda: torchvision.models.video.r3d_18(weights=None, num_classes=1000),
        "layer*",
        ("mean", 512),
    ),
    "torchvision video Swin": (
        lambda: torchvision.models.video.swin3d_t(weights=None, num_classes=1000),
        "features.*",
        ("mean", 768),
    ),
}


@pytest.mark.parametrize("name", list(ZOO))
def test_real_models_need_no_further_argument(name):
    build, layers, (pool, width) = ZOO[name]
    model = build()
    before = snapshot(model)
    probe = probes.attach(model, layers, n=1)
    last = probe.layers[-1]
    assert probe.settings.classes == 1000
    assert (probe.pools[last].kind, probe._by_layer()[last].width) == (pool, width)
    probe.detach()
    assert snapshot(model) == before


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "tokens", "NCL"])
def test_layouts_pool_over_positions_and_keep_channels(layout):
    class Layout(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.line = nn.Conv1d(8, 8, 1)
            self.out = nn.Identity()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            x = self.conv(x)
            if layout == "NHWC":
                return self.head(self.out(x.permute(0, 2, 3, 1)).mean((1, 2)))
            if layout == "tokens":
                return self.head(self.out(x.flatten(2).mT).mean(1))
            if layout == "NCL":
                return self.head(self.line(x.flatten(2)).mean(2))
            return self.head(self.out(x).mean((2, 3)))

    torch.manual_seed(0)
    model, x, y = Layout(), torch.randn(2, 3, 5, 5), torch.tensor([1, 3])
    probe = probes.attach(model, "line" if layout == "NCL" else "out", n=1, sample=x)
    model(x)
    h = model.conv(x)
    features = (model.line(h.flatten(2)) if layout == "NCL" else h.flatten(2)).mean(2)
    target = F.one_hot(y, 4).float()
    (weight,) = probe.parameters()
    expected = F.binary_cross_entropy_with_logits(features @ weight[0].mT, target)
    torch.testing.assert_close(probe.loss(y), expected)


@pytest.mark.parametrize("shape", [(64, 101), (101, 64), (32, 64)])
def test_feature_maps_of_images_that_are_not_square(shape):
    model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    probe = probes.attach(model, "0", n=1, sample=torch.zeros(2, 1, *shape))
    assert probe._by_layer()["0"].width == 64


def test_class_token_at_another_image_size():
    model = timm.create_model("vit_tiny_patch16_224", depth=1, dynamic_img_size=True)
    probe = probes.attach(model, "blocks.0", n=1, sample=torch.zeros(2, 3, 96, 96))
    assert probe.pools["blocks.0"].kind == "cls"


def test_hugging_face_classifier_by_keyword_sample():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=7,
    )
    model = ViTForImageClassification(config)
    sample = {"pixel_values": torch.zeros(2, 3, 8, 8)}
    layers = [name for name, m in model.named_modules() if type(m).__name__ == "ViTLayer"]
    probe = probes.attach(model, layers, n=2, sample=sample)
    assert probe.settings.classes == 7
    assert {pool.kind for pool in probe.pools.values()} == {"cls"}
    model.train()
    loss = F.cross_entropy(model(**sample).logits, torch.tensor([1, 2]))
    (loss + probe.loss(torch.tensor([1, 2]))).backward()


def test_a_model_that_needs_real_numbers_is_run_once_on_the_sample():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            h = self.one(x)
            return self.two(h if x.sum().item() > -1e9 else -h)

    model, x = Branching(), torch.randn(5, 4)
    before = snapshot(model)
    probe = probes.attach(model, "one", n=2, sample=x)
    assert probe.settings.classes == 3
    probe.detach()
    assert snapshot(model) == before


class Remembering(nn.Module):
    """Its forward writes buffers in place, keeps a cache, and appends to a list."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.ones(6))
        self.cache, self.log = None, []

    def forward(self, x):
        h = self.one(x)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.cache = torch.ones(6) if self.cache is None else self.cache
        self.log.append(h.shape)
        return self.two(h * self.cache)


def test_a_model_that_remembers_has_nothing_to_remember():
    model, seen = Remembering(), []
    model.one.register_forward_hook(lambda *_: seen.append("the user's own hook"))
    before = snapshot(model)
    probes.attach(model, "one", n=2).detach()
    assert snapshot(model) == before
    assert (model.cache, model.log, seen) == (None, [], [])


def test_a_timm_model_with_a_cache_still_works_and_pickles(tmp_path):
    model = timm.create_model("levit_128s").eval()
    probes.attach(model, "stages.*", n=1).detach()
    assert model(torch.randn(1, 3, 224, 224)).argmax().item() >= 0
    torch.save(model, tmp_path / "model.pt")


class Drawing(nn.Module):
    """Its forward draws from every global generator; it may also need real numbers."""

    def __init__(self, real):
        super().__init__()
        self.one, self.two, self.real = nn.Linear(4, 6), nn.Linear(6, 3), real

    def forward(self, x):
        noise = torch.rand(6) + random.random() + np.random.rand()  # noqa: NPY002
        return self.two(self.one(x) * (noise.sum().item() if self.real else noise))


@pytest.mark.parametrize("real", [False, True])
def test_a_model_that_draws_leaves_the_generators_where_they_were(real):
    model = Drawing(real)
    before = snapshot(model)
    probes.attach(model, "one", n=2).detach()
    assert snapshot(model) == before


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x, padding):
        return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_a_transformer_encoder():
    model, x, y = Padded(), torch.randn(2, 5, 8), torch.tensor([0, 2])
    padding = torch.arange(5) >= torch.tensor([[3], [5]])
    probe = probes.attach(model, "encoder.layers.*", n=2, sample=(x, padding))
    assert torch.backends.mha.get_fastpath_enabled()
    model(x, padding)
    expected = probe.loss(y)  # training makes none
    model.eval()
    with torch.no_grad(), probe.listening():
        model(x, padding)
        with pytest.raises(RuntimeError, match=r"nested tensor.*set_fastpath_enabled\(False\)"):
            probe.loss(y)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            model(x, padding)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        torch.testing.assert_close(probe.loss(y), expected.detach())


@pytest.mark.parametrize("n_samples", [2, 5])  # as many as the dry run had, and others
def test_of_two_tensors_the_one_with_the_samples_first_is_probed(n_samples):
    model = OfTwoStreams().double()
    probe = probes.attach(model, "blocks.*", n=2, sample=torch.zeros(2, 4, 3).double())
    x = torch.randn(n_samples, 4, 3).double()
    y = torch.arange(n_samples) % 3
    model(x)
    loss = probe.loss(y)

    # By hand: the rows of each block are the features.
    streams = (x.reshape(-1, 3), x.new_zeros(n_samples, 5))
    expected = torch.zeros(())
    for name, block in model.blocks.named_children():
        streams = block(streams)
        expected = expected + layer_loss(streams[1], weights_of(probe, f"blocks.{name}"), y, "bce")
    torch.testing.assert_close(loss, expected.double(), rtol=1e-12, atol=0)
