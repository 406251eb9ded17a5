"""Losses and gradients of a probe against a plain hook-free computation, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from tests.helpers.probe_reference import layer_loss, weights_of

TIGHT = {"rtol": 1e-12, "atol": 1e-14}


class Net(nn.Module):
    """Convolution, tokens with a class token, and a vector: every layout in one model."""

    def __init__(self, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6))
        self.mix = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(6, 7)
        self.head = nn.Linear(7, classes)

    def forward(self, x):
        return self.trace(x)[-1]

    def trace(self, x):
        """The outputs of conv, mix, fc and of the whole model, in a pass without any hook."""
        conv = self.conv(x)
        tokens = self.norm(conv).relu().flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], 1)
        mix = self.mix(tokens)
        fc = self.fc(self.drop(mix.tanh()).mean(1))
        return conv, mix, fc, self.head(fc.relu())


POOLED = {
    ("conv", "auto"): lambda h: h.mean((2, 3)),
    ("conv", "gap"): lambda h: h.mean((2, 3)),
    ("conv", "flatten"): lambda h: h.flatten(1),
    ("mix", "auto"): lambda h: h[:, 0],
    ("mix", "cls"): lambda h: h[:, 0],
    ("mix", "mean"): lambda h: h.mean(1),
    ("fc", "auto"): lambda h: h,
    ("fc", "flatten"): lambda h: h,
    ("conv", "custom"): lambda h: h.amax((2, 3)),
}


def make(classes=5, samples=4):
    torch.manual_seed(0)
    model = Net(classes).double()
    x = torch.randn(samples, 3, 5, 5, dtype=torch.float64)
    y = torch.randint(0, classes, (samples,))
    return model, x, y


def reference_gradients(model, probe, x, y, layers, pools, kind, alpha):
    """Total loss and gradients from the trace, through plain linear layers."""
    leaves = {k: [w.detach().clone() for w in weights_of(probe, k)] for k in layers}
    for name in layers:
        trained = probe.settings.active
        for weight in leaves[name][len(leaves[name]) - trained :]:
            weight.requires_grad_()
    torch.manual_seed(7)
    outputs = dict(zip(("conv", "mix", "fc", "main"), model.trace(x), strict=True))
    main = F.cross_entropy(outputs["main"], y if y.dim() == 1 else y.argmax(1))
    total = main
    for name in layers:
        total = total + alpha * layer_loss(pools[name](outputs[name]), leaves[name], y, kind)
    inputs = list(model.parameters())
    trained = [w for ws in leaves.values() for w in ws if w.requires_grad]
    grads = torch.autograd.grad(total, inputs + trained)
    return total.detach(), grads[: len(inputs)], grads[len(inputs) :]


def probe_gradients(model, probe, x, y):
    torch.manual_seed(7)
    main = F.cross_entropy(model(x), y if y.dim() == 1 else y.argmax(1))
    total = main + probe.loss(y)
    inputs, trained = list(model.parameters()), list(probe.parameters())
    grads = torch.autograd.grad(total, inputs + trained)
    active = [g for stack in grads[len(inputs) :] for g in stack]
    return total.detach(), grads[: len(inputs)], active


def custom_loss(logits, y):
    return F.multi_margin_loss(logits, y)


@pytest.mark.parametrize("kind", ["bce", "ce", custom_loss])
@pytest.mark.parametrize("active", [0, 1, 2, "all"])
@pytest.mark.parametrize(("layer", "pool"), list(POOLED))
def test_gradients_equal_plain_linear_layers(layer, pool, active, kind):
    model, x, y = make()
    given = POOLED[layer, pool] if pool == "custom" else pool
    settings = {"loss": kind, "active": active, "pool": given, "sample": x}
    probe = probes.attach(model, layer, n=3, alpha=0.7, **settings)
    found = probe_gradients(model, probe, x, y)
    pools = {layer: POOLED[layer, pool]}
    expected = reference_gradients(model, probe, x, y, [layer], pools, kind, 0.7)
    torch.testing.assert_close(found, expected, **TIGHT)


@pytest.mark.parametrize("kind", ["bce", "ce"])
def test_several_layers_add_up(kind):
    model, x, y = make()
    layers = ["conv", "mix", "fc"]
    probe = probes.attach(model, layers, n=4, alpha=0.3, loss=kind, sample=x)
    pools = {name: POOLED[name, "auto"] for name in layers}
    found = probe_gradients(model, probe, x, y)
    expected = reference_gradients(model, probe, x, y, layers, pools, kind, 0.3)
    torch.testing.assert_close(found, expected, **TIGHT)


@pytest.mark.parametrize("layer", ["conv", "mix"])
@pytest.mark.parametrize("kind", ["bce", "ce"])
def test_spatial_branch_is_a_1x1_convolution(layer, kind):
    model, x, y = make()
    probe = probes.attach(model, layer, n=2, loss=kind, pool="spatial", sample=x)
    model(x)
    found = probe.loss(y)
    h = dict(zip(("conv", "mix"), model.trace(x), strict=False))[layer]
    places = h.movedim(1, -1) if layer == "conv" else h
    expected = 0.0
    for weight in weights_of(probe, layer):
        logits = places.flatten(1, -2) @ weight.mT  # (sample, place, class)
        for place in range(logits.shape[1]):
            part = logits[:, place]
            if kind == "bce":
                one_hot = F.one_hot(y, 5).double()
                expected += F.binary_cross_entropy_with_logits(part, one_hot) / logits.shape[1]
            else:
                expected += F.cross_entropy(part, y) / logits.shape[1]
    torch.testing.assert_close(found, expected, **TIGHT)


@pytest.mark.parametrize("kind", ["bce", "ce"])
@pytest.mark.parametrize("targets", ["soft", "multi-hot", "one-hot integers"])
def test_targets_other_than_indices(kind, targets):
    model, x, y = make()
    if targets == "soft":
        y = torch.rand(4, 5, dtype=torch.float64).softmax(1)
    elif targets == "multi-hot":
        y = (torch.rand(4, 5) > 0.5).double()
    else:
        y = F.one_hot(y, 5)
    probe = probes.attach(model, "fc", n=3, loss=kind, sample=x)
    found = probe_gradients(model, probe, x, y)
    pools = {"fc": POOLED["fc", "auto"]}
    expected = reference_gradients(model, probe, x, y, ["fc"], pools, kind, 1.0)
    torch.testing.assert_close(found, expected, **TIGHT)


def test_one_hot_targets_equal_class_indices():
    model, x, y = make()
    probe = probes.attach(model, "fc", n=3, sample=x)
    found = [probe_gradients(model, probe, x, t) for t in (y, F.one_hot(y, 5).double())]
    torch.testing.assert_close(found[0], found[1], **TIGHT)


def test_capacity_control_adds_nothing():
    model, x, y = make()
    with probes.attach(model, "fc", n=3, connected=False, sample=x) as probe:
        torch.manual_seed(7)
        loss = F.cross_entropy(model(x), y)
        auxiliary = probe.loss(y)
        (loss + auxiliary).backward()
    with_probe = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.norm.reset_running_stats()
    torch.manual_seed(7)
    F.cross_entropy(model(x), y).backward()
    assert auxiliary.item() == 0
    assert all(p.grad is None for p in probe.parameters())
    for p, grad in zip(model.parameters(), with_probe, strict=True):
        assert torch.equal(p.grad, grad)


def test_zero_alpha_still_leaves_main_gradients_bitwise():
    model, x, y = make()
    plain = [g.clone() for g in torch.autograd.grad(_main(model, x, y), list(model.parameters()))]
    probe = probes.attach(model, ["conv", "fc"], n=3, sample=x)
    attached = torch.autograd.grad(_main(model, x, y), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain, attached, strict=True))
    assert probe.attached


def _main(model, x, y):
    torch.manual_seed(7)
    return F.cross_entropy(model(x), y)
