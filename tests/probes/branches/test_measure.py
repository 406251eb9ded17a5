"""`measure`, `alpha` schedules and the adaptive rules, against plain computations."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from probes import schedules
from tests.helpers.probe_reference import branch_loss, weights_of


def make(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model = model.double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    return model, x, y, probes.attach(model, ["1", "3"], n=3, **settings)


@pytest.mark.parametrize("method", ["exact", "compressed"])
@pytest.mark.parametrize("targets", ["indices", "multi-hot"])
def test_every_branch_is_measured(method, targets):
    model, x, y, probe = make(method=method)
    if targets == "multi-hot":
        y = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 1, 1]] * 3)
    model(x)
    found = probe.measure(y)
    features = {"1": torch.tanh(model[0](x))}
    features["3"] = torch.tanh(model[2](features["1"]))
    truth = F.one_hot(y, 3) if y.dim() == 1 else y
    for layer, h in features.items():
        weights = torch.cat(list(probe._by_layer()[layer].chunks()))
        for branch, weight in enumerate(weights):
            entry = found.sel(layer=layer, branch=branch)
            expected = branch_loss(h, weight, y, "bce").item()
            np.testing.assert_allclose(entry["loss"], expected, rtol=1e-12)
            hits = [int(truth[i, (h[i] @ weight.mT).argmax()]) for i in range(9)]
            np.testing.assert_allclose(entry["accuracy"], np.mean(hits))
    assert found["trained"].values.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({"active": 0}, (0, 1e-12), (0, 1e-12)),
        ({"active": 1}, (0, 1e-12), (0.1, 10)),
        ({"active": 0, "init": "normal"}, (0.1, 10), (0.1, 10)),
    ],
)
def test_orthogonality_is_lost_only_by_training_active_branches(settings, before, after):
    model, x, y, probe = make(**settings)
    optimizer = torch.optim.SGD([*model.parameters(), *probe.parameters()], lr=1.0)
    for low, high in (before, after):
        model(x)
        assert low <= probe.measure(y).attrs["orthogonality_error"] <= high
        for _ in range(20):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + probe.loss(y)).backward()
            optimizer.step()


@pytest.mark.parametrize("loss", ["ce", F.cross_entropy])
def test_other_losses_are_measured(loss):
    model, x, y, probe = make(loss=loss)
    model(x)
    found = probe.measure(y)["loss"].sel(layer="1")
    weights, h = weights_of(probe, "1"), torch.tanh(model[0](x))
    expected = [F.cross_entropy(h @ w.mT, y).item() for w in weights]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sum_of_measured_losses_is_the_loss():
    model, x, y, probe = make(alpha={"1": 0.5, "3": 2.0})
    model(x)
    loss = probe.loss(y).item()
    found = probe.measure(y)
    np.testing.assert_allclose((found["alpha"] * found["loss"]).sum(), loss, rtol=1e-12)
    assert found["alpha"].values.tolist() == [0.5, 2.0]
    assert int(found["step"]) == 1


def test_schedules_follow_the_number_of_losses():
    model, x, y, probe = make(alpha={"1": schedules.linear(1.0, 0.0, steps=4), "[3]": 2.0})
    alphas = []
    for _ in range(6):
        model(x)
        probe.loss(y)
        alphas.append(probe.measure(y)["alpha"].values.tolist())
    assert alphas == [[a, 2.0] for a in (1.0, 0.75, 0.5, 0.25, 0.0, 0.0)]


@pytest.mark.parametrize("shape", [schedules.linear, schedules.cosine])
def test_schedules_start_end_and_stay(shape):
    schedule = shape(3.0, 1.0, steps=10)
    values = [schedule(step) for step in range(15)]
    assert values[0] == 3.0
    assert values[10:] == [1.0] * 5
    assert all(a >= b for a, b in pairwise(values))


def test_bad_schedules_are_refused():
    with pytest.raises(ValueError, match="`steps`: expected at least 1, got 0"):
        schedules.linear(1, 0, steps=0)
    with pytest.raises(ValueError, match="finite"):
        schedules.cosine(1, float("inf"), steps=3)
    with pytest.raises(ValueError, match="`fraction`: expected a finite number of at least 0"):
        schedules.balance(-1)
    with pytest.raises(ValueError, match="`alpha`: expected"):
        schedules.gate(float("nan"))


def meeting_gradients(model, probe, x, y):
    """Both gradients at each attachment point, from a graph built by hand."""
    first = torch.tanh(model[0](x)).detach().requires_grad_()
    second = torch.tanh(model[2](first))
    second.retain_grad()
    main = F.cross_entropy(model[4](second), y)
    main_grads = torch.autograd.grad(main, (first, second))
    auxiliary = []
    for layer, h in (("1", first), ("3", second)):
        part = sum(branch_loss(h, w, y, "bce") for w in weights_of(probe, layer))
        auxiliary.append(torch.autograd.grad(part, h, retain_graph=True)[0])
    return list(zip(main_grads, auxiliary, strict=True))


def test_balance_keeps_the_auxiliary_gradient_at_its_fraction():
    model, x, y, probe = make(alpha=schedules.balance(0.3))
    assert np.isnan(_measured(model, probe, x, y)["alpha"]).all()
    main = F.cross_entropy(model(x), y)
    total = probe.loss(y, main=main)
    alphas = probe.measure(y)["alpha"].values
    expected = [
        0.3 * (g.norm() / a.norm()).item() for g, a in meeting_gradients(model, probe, x, y)
    ]
    np.testing.assert_allclose(alphas, expected, rtol=1e-10)
    (main + total).backward()  # the graph is still there
    measured = probe.measure(y)
    np.testing.assert_allclose(total.item(), (measured["loss"].sum("branch") @ measured["alpha"]))


def test_gate_passes_only_where_the_cosine_is_positive():
    seen = set()
    for seed in range(12):
        model, x, y, probe = make(alpha=schedules.gate(0.7), seed=seed)
        main = F.cross_entropy(model(x), y)
        probe.loss(y, main=main)
        alphas = probe.measure(y)["alpha"].values.tolist()
        signs = [(g * a).sum().item() > 0 for g, a in meeting_gradients(model, probe, x, y)]
        assert alphas == [0.7 if positive else 0.0 for positive in signs]
        seen.update(signs)
    assert seen == {True, False}


def test_adaptive_rules_survive_in_place_operations():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    probe = probes.attach(model, "0", n=3, alpha=schedules.balance(1.0))
    probe.loss(y, main=F.cross_entropy(model(x), y))
    found = probe.measure(y)["alpha"].item()
    h = F.linear(x, model[0].weight, model[0].bias).requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(model[2](h.relu()), y), h)
    part = sum(branch_loss(h, w, y, "bce") for w in weights_of(probe, "0"))
    (a,) = torch.autograd.grad(part, h)
    assert found == pytest.approx((g.norm() / a.norm()).item(), rel=1e-5)


def test_adaptive_rules_need_the_main_loss_and_others_refuse_it():
    model, x, y, probe = make(alpha=schedules.gate())
    main = F.cross_entropy(model(x), y)
    with pytest.raises(ValueError, match="`main`: the main loss is needed"):
        probe.loss(y)
    probe.loss(y, main=main)
    model, x, y, probe = make()
    main = F.cross_entropy(model(x), y)
    with pytest.raises(ValueError, match="`main`: the main loss is of use only"):
        probe.loss(y, main=main)


def test_adaptive_rules_refuse_compiled_models_and_unreached_layers():
    model, x, y, probe = make(alpha=schedules.gate())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    main = F.cross_entropy(compiled(x), y)
    with pytest.raises(RuntimeError, match="needs an eager model"):
        probe.loss(y, main=main)
    torch._dynamo.reset()
    model(x)
    with pytest.raises(RuntimeError, match="does not depend on layer '1'"):
        probe.loss(y, main=(model[4].weight ** 2).sum())


def test_compression_error_leaves_a_pending_loss_alone():
    model, x, y, probe = make()
    model(x)
    error = probe.compression_error(torch.randn(5, 4, dtype=torch.float64))
    assert error["cosine"].shape == (2, 5)
    assert model.training
    model_loss = probe.loss(y)
    assert model_loss.requires_grad


def test_compression_error_needs_sigmoid_static_branches_and_a_model():
    model, x, _, probe = make(loss="ce")
    with pytest.raises(ValueError, match="'bce' only"):
        probe.compression_error(x)
    model, x, _, probe = make(active="all")
    del model
    with pytest.raises(RuntimeError, match="detached"):
        probe.compression_error(x)  # its model is gone
    model, x, _, probe = make(active="all")
    with pytest.raises(ValueError, match="all are active"):
        probe.compression_error(x)
    assert model.training


def _measured(model, probe, x, y):
    model(x)
    return probe.measure(y)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_real_targets_have_no_accuracy(n_outputs):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, n_outputs)
    )
    mse = torch.nn.functional.mse_loss
    with probes.attach(model, "0", n=2, loss=mse, classes=n_outputs) as probe:
        model(torch.randn(5, 4))
        branches = probe.measure(5 * torch.randn(5, n_outputs))
    assert branches["accuracy"].isnull().all()
    assert branches["loss"].notnull().all()
