"""The lab's backbones against the tables of the asymmetric-training paper."""

from collections import Counter

import pytest
import torch
from torch import nn

import probes
from lab.backbones import asymmetric_paper as backbones
from lab.backbones.build import build_backbone

# Table 25: stage, channels, resolution, blocks.
COATNET = {
    "s0": (64, 32, 1),
    "s1": (96, 16, 2),
    "s2": (128, 8, 2),
    "s3": (256, 8, 3),
    "s4": (384, 4, 2),
}
BLOCKS = {"s1": "MbConvBlock", "s2": "MbConvBlock"}


def test_coatnet_has_the_published_stages():
    model = backbones.coatnet().eval()
    h = torch.randn(2, 3, 32, 32)
    for name, (channels, resolution, blocks) in COATNET.items():
        stage = model.get_submodule(name)
        h = stage(h)
        assert h.shape == (2, channels, resolution, resolution), name
        kinds = [type(m).__name__ for m in stage.modules()]
        kind = "Conv2d" if name == "s0" else BLOCKS.get(name, "TransformerBlock2d")
        assert kinds.count(kind) == blocks, name

    assert model.head(h).shape == (2, 100)


def test_coatnet_drops_paths_at_rates_that_rise_to_a_tenth():
    drops = [m.drop_prob for m in backbones.coatnet().modules() if hasattr(m, "drop_prob")]
    assert drops == sorted(drops)
    assert drops[-1] == pytest.approx(0.1)
    assert not any(hasattr(m, "drop_prob") for m in backbones.coatnet(drop_path=0.0).modules())


def test_coatnet_takes_other_images():
    model = backbones.coatnet(10, image=8, channels=1)
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_coatnet_learns_a_batch_by_heart():
    torch.manual_seed(0)
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8)
    model = backbones.coatnet(8, image=8, channels=1)
    probe = probes.attach(model, backbones.LAYERS["coatnet"], n=2, alpha=0.1, sample=x)
    optimizer = torch.optim.AdamW([*model.parameters(), *probe.parameters()], lr=1e-3)
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss + probe.loss(y)).backward()
        optimizer.step()

    assert loss < 0.1
    assert all(p.grad is not None for p in model.parameters())


# Table 21, and table 25 for the last: the width at every attachment point.
WIDTHS = {
    "resnet18": (64, 128, 256, 512),
    "resnet50": (256, 512, 1024, 2048),
    "vit_small": (384, 384, 384),
    "vit_base": (768, 768, 768),
    "coatnet": (256,),
}


@pytest.mark.parametrize("name", list(WIDTHS))
def test_attachment_points_have_the_published_widths(name):
    model = getattr(backbones, name)()
    sample = torch.randn(2, 3, 32, 32) if name == "coatnet" else None
    probe = probes.attach(model, backbones.LAYERS[name], n=1, sample=sample)
    assert tuple(probe._by_layer()[layer].width for layer in probe.layers) == WIDTHS[name]
    assert probe.settings.classes == (100 if name == "coatnet" else 1000)

    if name.startswith("vit"):
        assert {pool.kind for pool in probe.pools.values()} == {"cls"}
        assert probe.layers == [f"blocks.{block - 1}" for block in (3, 6, 9)]


def test_coatnet_can_be_probed_at_s2_as_well():
    model = backbones.coatnet()
    probe = probes.attach(model, "s2", n=1, sample=torch.randn(2, 3, 32, 32))
    assert probe._by_layer()["s2"].width == 128


def test_every_backbone_names_its_attachment_points():
    built = {n for n in backbones.__all__ if n != "LAYERS"}
    assert built == set(backbones.LAYERS)


@pytest.mark.parametrize("name", list(backbones.LAYERS))
def test_every_backbone_is_built_for_the_images_at_hand(name):
    channels = 3 if name in ("resnet18", "resnet50", "vit_small", "vit_base") else 1
    model = build_backbone(name, 7, image=16, channels=channels).eval()
    assert model(torch.randn(2, channels, 16, 16)).shape == (2, 7)


def test_an_unknown_backbone_is_refused():
    with pytest.raises(ValueError, match=r"`backbone`: expected one of mlp, cnn.*got 'perceptron'"):
        build_backbone("perceptron", 10, image=8, channels=1)


def test_the_cnn_has_what_the_paper_lists():
    """Six convolutions, two poolings, one dropout, three linear layers."""
    kinds = Counter(type(module).__name__ for module in backbones.cnn().modules())
    counts = [kinds[name] for name in ("Conv2d", "MaxPool2d", "Dropout", "Linear")]
    assert counts == [6, 2, 1, 3]
