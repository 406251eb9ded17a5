"""The exact and the compressed engine against closed forms, differences, and each other."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from probes._branches.closed_form_loss import _DERIVATIVES, compressed_loss
from probes._branches.exact_loss import exact_loss
from tests.helpers.probe_reference import layer_loss, weights_of

TIGHT = {"rtol": 1e-12, "atol": 1e-14}


@pytest.mark.parametrize("kind", ["bce", "ce"])
@pytest.mark.parametrize("soft", [False, True])
def test_exact_engine_passes_gradcheck_twice(kind, soft):
    torch.manual_seed(0)
    h = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.rand(4, 5, dtype=torch.float64) if soft else torch.tensor([0, 4, 2, 2])

    def loss(h, w):
        return exact_loss(h, w, w.sum(0), y, kind)

    assert torch.autograd.gradcheck(loss, (h, w))
    assert torch.autograd.gradgradcheck(loss, (h, w))


@pytest.mark.parametrize("soft", [False, True])
def test_compressed_engine_passes_gradcheck_twice(soft):
    torch.manual_seed(0)
    h = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(7, 5, 3, dtype=torch.float64)
    gram, summed = torch.einsum("kcd,kce->de", w, w), w.sum(0)
    y = torch.rand(4, 5, dtype=torch.float64) if soft else torch.tensor([0, 4, 2, 2])

    def loss(h):
        return compressed_loss(h, gram, summed, y, 7, excess=-0.3)

    assert torch.autograd.gradcheck(loss, (h,))
    assert torch.autograd.gradgradcheck(loss, (h,))


@pytest.mark.parametrize("scale", [0.0, 1e-4, 0.3, 1.0, 4.0, 20.0, 300.0])
def test_compressed_engine_is_the_gaussian_expectation(scale):
    """With W'W = I and no label pull the closed form is E[softplus], which numpy integrates."""
    h = torch.tensor([[scale]], dtype=torch.float64, requires_grad=True)
    gram = torch.eye(1, dtype=torch.float64)
    none = torch.zeros(1, 1, dtype=torch.float64)
    loss = compressed_loss(h, gram, none, torch.zeros(1, 1, dtype=torch.float64), 1)
    (slope,) = torch.autograd.grad(loss, h)
    x = np.linspace(-12, 12, 2_000_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    expected = np.trapezoid(np.logaddexp(0, scale * x) * density, x)
    sigmoid = 1 / (1 + np.exp(-np.clip(scale * x, -500, 500)))
    expected_slope = scale * np.trapezoid(sigmoid * (1 - sigmoid) * density, x)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-8)
    np.testing.assert_allclose(slope.item(), expected_slope, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 90.0, -90.0, 800.0, -800.0])
def test_exact_engine_survives_extreme_logits(shift):
    h = torch.full((70, 1), shift, dtype=torch.float32)
    w = torch.ones(2, 1, 1)
    y = torch.zeros(70, dtype=torch.long)
    loss = exact_loss(h, w, w.sum(0), y, "bce").item()
    assert loss == pytest.approx(2 * np.logaddexp(0, -shift), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("kind", ["bce", "ce"])
def test_chunking_changes_nothing(monkeypatch, rows, kind):
    torch.manual_seed(0)
    h = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(9, 5, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 5, (rows,))
    expected = layer_loss(h, list(w), y, kind)
    expected_grads = torch.autograd.grad(expected, (h, w))
    for budget in (1, 40, 330, 10**6):
        monkeypatch.setitem(probes._branches.potentials._CHUNK_ELEMENTS, "cpu", budget)
        loss = exact_loss(h, w, w.sum(0), y, kind)
        torch.testing.assert_close(loss, expected, **TIGHT)
        torch.testing.assert_close(torch.autograd.grad(loss, (h, w)), expected_grads, **TIGHT)


@pytest.mark.parametrize("init", ["orthogonal", "normal"])
@pytest.mark.parametrize(("classes", "width"), [(10, 32), (32, 10)])
def test_compressed_converges_to_exact(classes, width, init):
    """The even part is a mean over n C logits, so its relative error falls as 1 / sqrt(n)."""
    generator = torch.Generator().manual_seed(0)
    # Scaled so that logits have unit variance whichever of the two is larger.
    h = torch.randn(64, width, dtype=torch.float64, generator=generator)
    h = (h * math.sqrt(max(1.0, classes / width))).requires_grad_()
    y = torch.randint(0, classes, (64,), generator=generator)
    model = nn.Sequential(nn.Identity(), nn.Linear(width, classes)).double()
    counts, errors = (10, 40, 160, 640, 2560), []
    for n in counts:
        probe = probes.attach(model, "0", n=n, active=0, init=init, sample=h)
        weights = torch.stack(weights_of(probe, "0"))
        exact = torch.autograd.grad(layer_loss(h, list(weights), y, "bce"), h)[0]
        gram, summed = torch.einsum("kcd,kce->de", weights, weights), weights.sum(0)
        excess = probe._by_layer()["0"].excess
        closed = compressed_loss(h, gram, summed, y, n, excess)
        found = torch.autograd.grad(closed, h)[0]
        odd = (summed.sum(0) / 2 - summed[y]) / (64 * classes)
        errors.append(float((found - exact).norm() / (exact - odd).norm()))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4, (slope, errors)
    assert errors[-1] < 0.01


def test_compressed_probe_agrees_with_exact_on_facts_of_the_design():
    """d = 128, C = 100, unit-variance logits, n = 20: cosine above 0.999, error near 3 %."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(128, 100))
    x, y = torch.randn(128, 128), torch.randint(0, 100, (128,))
    probe = probes.attach(model, "0", n=21, method="compressed")
    error = probe.compression_error(x, y)
    assert float(error["cosine"].min()) > 0.999
    assert float(error["relative_error"].mean()) < 0.04


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_compressed_loss_and_gradients_approach_exact_ones(n, soft):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 20))
    x, y = torch.randn(16, 30), torch.randint(0, 20, (16,))
    y = torch.rand(16, 20) if soft else y
    found = []
    for method in ("exact", "compressed"):
        with probes.attach(model, "1", n=n, method=method) as probe:
            model(x)
            loss = probe.loss(y)
            grads = torch.autograd.grad(loss, [model[0].weight, *probe.parameters()])
            found.append([loss.detach(), *grads])
    for exact, compressed in zip(*found, strict=True):
        assert float((exact - compressed).norm() / exact.norm()) < (1e-6 if n == 1 else 0.02)


def test_compressed_memory_does_not_depend_on_n():
    model = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 20))
    sizes = []
    for n in (2, 300):
        probe = probes.attach(model, "1", n=n, method="compressed")
        sizes.append(sum(t.numel() for t in [*probe.parameters(), *probe.buffers()]))
        assert probe.n_parameters == n * 20 * 50
    assert sizes[0] == sizes[1]


def test_even_derivatives_of_softplus():
    z = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    derivative = F.softplus(z)
    for order in range(1, 2 * len(_DERIVATIVES) - 1):
        (derivative,) = torch.autograd.grad(derivative.sum(), z, create_graph=True)
        if order % 2 == 0:
            torch.testing.assert_close(_DERIVATIVES[order // 2](z), derivative, **TIGHT)
