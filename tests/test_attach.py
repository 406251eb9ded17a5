"""What `probes.attach` finds in real models, what it refuses, and that it harms nothing."""

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from state import snapshot
from torch import nn

import probes
from lab.backbones import LAYERS, cnn, mlp, vit6


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


@pytest.mark.parametrize(
    ("build", "layers", "classes", "counts"),
    [
        (mlp, "mlp", 10, ("0.28", "0.29", "0.40", "2.01")),
        (cnn, "cnn", 100, ("2.43", "2.51", "4.09", "27.39")),
        (vit6, "vit6", 100, ("1.22", "1.29", "2.75", "24.26")),
    ],
)
def test_published_parameter_counts(build, layers, classes, counts):
    """Published with three digits: 27.4 and 24.3 million at 300 branches."""
    model = build(classes)
    backbone = sum(p.numel() for p in model.parameters())
    found = [f"{backbone / 1e6:.2f}"]
    for n in (1, 20, 300):
        probe = probes.attach(model, LAYERS[layers], n=n, init=_no_numbers)
        stored = sum(t.numel() for name, t in probe.state_dict().items() if _is_branch(name, t))
        assert probe.n_parameters == stored
        found.append(f"{(backbone + stored) / 1e6:.2f}")
    assert tuple(found) == counts


def _is_branch(name, tensor):
    return isinstance(tensor, torch.Tensor) and name.endswith(("static", "active"))


def _no_numbers(weight, generator):
    weight.zero_()


def test_attaching_changes_nothing_bitwise():
    torch.manual_seed(0)
    model = vit6(10, image=8, patch=2, channels=1)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([1, 2, 3, 4])
    keys, plain = list(model.state_dict()), model(x)
    grads = torch.autograd.grad(F.cross_entropy(plain, y), list(model.parameters()))
    before = snapshot(model)
    probe = probes.attach(model, "blocks.*", n=5)
    attached = model(x)
    assert torch.equal(attached, plain)
    again = torch.autograd.grad(F.cross_entropy(attached, y), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
    assert list(model.state_dict()) == keys
    probe.detach()
    probe.detach()
    assert snapshot(model) == before


def test_static_branches_are_frozen_and_only_active_ones_are_parameters():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for active, expected in ((0, 0), (1, 18), (2, 36), ("all", 72)):
        probe = probes.attach(model, "0", n=4, active=active)
        assert sum(p.numel() for p in probe.parameters()) == expected
        static = probe._by_layer()["0"].static
        assert not static.requires_grad
        assert len(static) == 4 - expected // 18


@pytest.mark.parametrize(("classes", "width"), [(5, 9), (9, 5), (6, 6)])
def test_orthogonal_means_orthonormal_rows_or_columns_within_a_branch(classes, width):
    model = nn.Sequential(nn.Identity(), nn.Linear(width, classes)).double()
    probe = probes.attach(model, "0", n=4)
    branches = probe._by_layer()["0"]
    for weight in [*branches.static, *branches.active.detach()]:
        w = weight if classes <= width else weight.mT
        torch.testing.assert_close(w @ w.mT, torch.eye(len(w)).double(), atol=1e-13, rtol=0)
    assert branches.orthogonality_error < 1e-13


@pytest.mark.parametrize("init", ["normal", "default"])
def test_other_initialisations_have_their_variance(init):
    model = nn.Sequential(nn.Identity(), nn.Linear(50, 20))
    weights = probes.attach(model, "0", n=200, init=init)._by_layer()["0"].static
    expected = 1 / 50 if init == "normal" else 1 / 50 / 3  # uniform in +-1/sqrt(width)
    assert float(weights.var()) == pytest.approx(expected, rel=0.02)


def test_branches_depend_on_seed_and_layer_name_only():
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    alone = probes.attach(model, "1", n=3)._by_layer()["1"].static
    torch.manual_seed(123)
    among = probes.attach(model, ["0", "1"], n=5)._by_layer()
    assert torch.equal(among["1"].static[:2], alone)
    assert not torch.equal(among["0"].static[0], among["1"].static[0])
    assert not torch.equal(probes.attach(model, "1", n=3, seed=1)._by_layer()["1"].static, alone)


def test_exact_and_compressed_share_their_branches():
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3))
    exact, compressed = (
        torch.cat(list(probes.attach(model, "0", n=40, method=m)._by_layer()["0"].chunks()))
        for m in ("exact", "compressed")
    )
    assert torch.equal(exact, compressed)


class Tuples(nn.Module):
    """A layer that yields a tuple, one that yields text, one that never runs."""

    class Pair(nn.Module):
        def forward(self, x):
            return x * 2, "text"

    class Text(nn.Module):
        def forward(self, x):
            return "text"

    class Count(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    class Windows(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 2)

    def __init__(self):
        super().__init__()
        self.pair, self.text, self.idle = self.Pair(), self.Text(), nn.Linear(4, 4)
        self.count, self.windows, self.head = self.Count(), self.Windows(), nn.Linear(4, 3)

    def forward(self, x):
        self.text(x), self.count(x), self.windows(x)
        return self.head(self.pair(x)[0])


def test_first_tensor_of_a_tuple_is_the_feature():
    model, x = Tuples(), torch.randn(5, 4)
    probe = probes.attach(model, "pair", n=1, sample=x)
    model(x.requires_grad_())
    assert torch.equal(probe._capture.features["pair"][0], x * 2)


BAD = {
    "unknown layer": ({"layers": "hed"}, "did you mean 'head'"),
    "unknown pattern": ({"layers": ["pair", "blocks.*"]}, r"nothing is called 'blocks\.\*'"),
    "no layer": ({"layers": []}, "`layers`: expected one or more"),
    "no tensor": ({"layers": "text"}, "'text': expected a floating tensor.*no tensor"),
    "whole numbers": ({"layers": "count"}, "'count': expected a floating tensor.*int64"),
    "never runs": ({"layers": "idle"}, "'idle': the layer never runs in eval mode"),
    "not per sample": ({"layers": "windows"}, "one entry per sample first"),
    "no branches": ({"n": 0}, "`n`: expected a whole number of at least 1, got 0"),
    "half a branch": ({"n": 1.5}, "`n`: expected a whole number"),
    "alpha NaN": ({"alpha": float("nan")}, "`alpha`: expected a finite number.*nan"),
    "alpha negative": ({"alpha": -1.0}, "`alpha`: expected a finite number.*-1"),
    "alpha for a stranger": ({"alpha": {"tail": 1.0}}, "`alpha`: nothing is called 'tail'"),
    "alpha leaves one out": (
        {"layers": ["pair", "head"], "alpha": {"pair": 1.0}},
        "none for .'head'.",
    ),
    "alpha schedule to NaN": ({"alpha": lambda step: float("nan")}, "`alpha`: expected a finite"),
    "active": ({"active": 3}, "`active`: expected 0 to 2 or 'all', got 3"),
    "loss": ({"loss": "mse"}, "`loss`: expected one of bce, ce or a callable, got 'mse'"),
    "init": ({"init": "zeros"}, "`init`: expected one of orthogonal, normal, default"),
    "pool": ({"pool": "max"}, "`pool`: expected one of auto, cls"),
    "pool of a vector": ({"pool": "mean"}, "'mean' needs several positions"),
    "class token of a vector": ({"pool": "cls"}, "'cls' needs tokens"),
    "pool to a scalar": ({"pool": torch.sum}, "`pool`: expected features"),
    "method": ({"method": "fast"}, "`method`: expected one of exact, compressed"),
    "calls": ({"calls": "first"}, "`calls`: expected one of last, mean, all"),
    "classes": ({"classes": 0}, "`classes`: expected a whole number"),
    "compressed ce": ({"method": "compressed", "loss": "ce"}, "'compressed' exists for loss='bce'"),
    "compressed custom": ({"method": "compressed", "loss": F.cross_entropy}, "'compressed' exists"),
    "compressed all active": ({"method": "compressed", "active": "all"}, "all are active"),
    "sample of another shape": ({"sample": torch.zeros(2, 7)}, "a forward pass failed"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_refused_before_anything_changes(case):
    arguments, message = BAD[case]
    model = Tuples()
    before = snapshot(model)
    settings = {"layers": "pair", "n": 2, "sample": torch.zeros(5, 4)} | arguments
    with pytest.raises(ValueError, match=message):
        probes.attach(model, **settings)
    assert snapshot(model) == before


def test_models_that_cannot_be_probed_are_refused():
    linear = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ValueError, match="meta device"):
        probes.attach(nn.Linear(4, 3, device="meta"), "weight")
    with pytest.raises(ValueError, match="is lazy"):
        probes.attach(nn.Sequential(nn.LazyLinear(3)), "0")
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        probes.attach(nn.DataParallel(linear), "0")
    with pytest.raises(TypeError, match=r"expected an nn\.Module, got function"):
        probes.attach(lambda x: x, "0")
    with pytest.raises(TypeError, match="expected a number, mapping or schedule, got 'big'"):
        probes.attach(linear, "0", alpha="big")
    with pytest.raises(ValueError, match="give an input batch as `sample`"):
        probes.attach(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), "1")
    with pytest.raises(ValueError, match="num_classes=0"):
        probes.attach(timm.create_model("resnet18", num_classes=0), "layer1")
    with pytest.raises(ValueError, match=r"cannot tell from an output of shape \(2, 7, 3\)"):
        probes.attach(linear, "0", sample=torch.zeros(2, 7, 4))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(4, dtype=torch.long), r"class indices \(5,\).*got shape \(4,\)"),
        (torch.zeros(5, 2), r"numbers \(5, 3\), got shape \(5, 2\)"),
        (torch.zeros(5), "of floating numbers"),
        (torch.tensor([0, 1, 2, 3, 0]), "class indices 0 to 2, got 0 to 3"),
        (torch.tensor([0, 1, 2, -100, 0]), "got -100 to 2"),
    ],
)
def test_bad_targets_are_refused_and_the_pass_is_not_lost(y, message):
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.randn(5, 4)
    probe = probes.attach(model, "0", n=2)
    model(x)
    with pytest.raises(ValueError, match=message):
        probe.loss(y)
    with pytest.raises(ValueError, match=message):
        probe.measure(y)
    assert torch.isfinite(probe.loss(torch.zeros(5, dtype=torch.long)))


def test_targets_must_be_a_tensor_and_batches_not_empty():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    probe = probes.attach(model, "0", n=2)
    model(torch.randn(2, 4))
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        probe.loss([0, 1])
    model(torch.randn(0, 4))
    with pytest.raises(ValueError, match="empty batch"):
        probe.loss(torch.zeros(0, dtype=torch.long))


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


@pytest.mark.parametrize("shape", [(64, 101), (101, 64), (32, 64)])
def test_feature_maps_of_images_that_are_not_square(shape):
    model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    probe = probes.attach(model, "0", n=1, sample=torch.zeros(2, 1, *shape))
    assert probe._by_layer()["0"].width == 64


def test_class_token_at_another_image_size():
    model = timm.create_model("vit_tiny_patch16_224", depth=1, dynamic_img_size=True)
    probe = probes.attach(model, "blocks.0", n=1, sample=torch.zeros(2, 3, 96, 96))
    assert probe.pools["blocks.0"].kind == "cls"


@pytest.mark.parametrize("name", ["keys", "values", "items", "a[1]", "a/b"])
def test_layers_may_have_any_name(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(4, 3))
    probe = probes.attach(model, name, n=2)
    model(torch.randn(2, 4))
    assert probe.layers == [name]
    assert torch.isfinite(probe.loss(torch.tensor([0, 1])))


def test_names_go_before_patterns_in_alpha():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    probe = probes.attach(model, "*", n=2, alpha={"0": 0.1, "*": 1.0})
    model(torch.randn(2, 4))
    probe.loss(torch.tensor([0, 1]))
    assert probe.measure(torch.tensor([0, 1]))["alpha"].values.tolist() == [0.1, 1.0]


def test_a_callable_init_may_use_the_global_generator_without_moving_it():
    model = nn.Sequential(nn.Linear(4, 3))
    before = torch.get_rng_state()
    probes.attach(model, "0", n=2, init=lambda weight, _: nn.init.normal_(weight))
    assert torch.equal(torch.get_rng_state(), before)


def test_whatever_the_default_device():
    model = nn.Sequential(nn.Linear(4, 3))
    expected = probes.attach(model, "0", n=2)._by_layer()["0"].static
    with torch.device("meta"):
        found = probes.attach(model, "0", n=2)._by_layer()["0"].static
    assert torch.equal(found, expected)


def test_losses_that_are_not_scalars_and_targets_that_train_are_refused():
    model, x, y = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), torch.tensor([0, 1])
    probe = probes.attach(model, "0", n=2, loss=nn.CrossEntropyLoss(reduction="none"))
    model(x)
    with pytest.raises(ValueError, match=r"`loss`: expected a scalar, got shape \(2,\)"):
        probe.loss(y)
    probe = probes.attach(model, "0", n=2)
    model(x)
    with pytest.raises(ValueError, match="targets without gradient"):
        probe.loss(torch.rand(2, 3, requires_grad=True))
