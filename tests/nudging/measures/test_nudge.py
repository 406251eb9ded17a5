"""Nudging against closed forms: linear networks, quadratic losses."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import nudging
import probes
import tests.helpers.nudging_models as nets

WIDTHS = (6, 5, 4, 3)


def linear_network(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    return nn.Sequential(*layers).double()


def linear_data(n=12):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, WIDTHS[0], generator=generator, dtype=torch.float64)
    return x, torch.randn(n, WIDTHS[-1], generator=generator, dtype=torch.float64)


def half_square(outputs, targets):
    return (outputs - targets).square().sum(1) / 2


def linear_facts(model, x, y):
    """By block: the matrix from its output to the network's, and the gradient of each sample."""
    weights = [layer.weight.detach() for layer in model]
    after = [weights[2] @ weights[1], weights[2], torch.eye(WIDTHS[-1], dtype=torch.float64)]
    error = model(x).detach() - y
    return {str(i): (m, error @ m) for i, m in enumerate(after)}


def sized(credit, how):
    size = {"rms": credit.square().mean(1).sqrt(), "unit": credit.norm(dim=1)}
    return credit / size[how][:, None] if how in size else credit


@pytest.mark.parametrize("how", ["rms", "unit", "none"])
@pytest.mark.parametrize("credit", [nudging.backprop, nudging.random(3)])
def test_a_linear_network_with_a_quadratic_loss_changes_in_closed_form(how, credit):
    model, (x, y) = linear_network(), linear_data()
    found = nudging.nudge(
        model,
        (x, y),
        credit,
        "*",
        eta=[0.02, 0.5],
        loss=half_square,
        samples=None,
        normalisation=how,
        keep_samples=True,
    )
    a = credit(nudging.observe(model, x, y, "*", loss=half_square))
    for name, (after, g) in linear_facts(model, x, y).items():
        step = sized(g if credit is nudging.backprop else a[name], how)
        slope, bend = (g * step).sum(1), (step @ after.T).square().sum(1)
        for eta in (0.02, 0.5):
            change = -eta * slope + eta**2 / 2 * bend
            at = found.sel(layer=name, eta=eta)
            np.testing.assert_allclose(at["sample_change"], change, rtol=1e-9)
            np.testing.assert_allclose(at["loss_change"], change.mean(), rtol=1e-9)
            error = change.std() / len(change) ** 0.5
            np.testing.assert_allclose(at["loss_change_se"], error, rtol=1e-9)
            np.testing.assert_allclose(at["predicted_change"], -eta * slope.mean(), rtol=1e-9)
    np.testing.assert_allclose(found["loss"], half_square(model(x), y).mean().detach())


def test_first_order_prediction_is_off_by_order_eta_squared():
    model, data = nets.make(nets.ResMLP), nets.batch(32)
    etas = [0.008, 0.004, 0.002, 0.001]
    found = nudging.nudge(
        model,
        data,
        nudging.backprop,
        ["embed", "blocks.*"],
        eta=etas,
        samples=None,
        dtype=torch.float64,
    )
    miss = np.abs(found["loss_change"] - found["predicted_change"])
    rates = np.log2(miss.values[:, :-1] / miss.values[:, 1:])
    np.testing.assert_allclose(rates, 2.0, atol=0.1)
    assert (found["loss_change"] < 0).all()


def test_random_credit_changes_nothing_beyond_its_standard_error():
    model, data = nets.make(nets.ResMLP), nets.batch(2000)
    found = nudging.nudge(
        model, data, nudging.random(1), ["embed", "blocks.*"], eta=0.001, samples=None
    ).isel(eta=0)
    z = found["loss_change"] / found["loss_change_se"]
    assert np.abs(z).max() < 3.5
    assert (found["loss_change_se"] > 0).all()
    true = nudging.nudge(model, data, nudging.backprop, "blocks.*", eta=0.001, samples=None)
    assert (true["loss_change"] < -20 * found["loss_change_se"].max()).all()


@pytest.mark.parametrize("credit", [nudging.backprop, nudging.random(2)])
def test_the_size_of_batches_does_not_matter(credit):
    model, data = nets.make(nets.ResMLP, dtype=torch.float64), nets.batch(23, dtype=torch.float64)
    blocks = ["embed", "blocks.*"]
    several = [
        nudging.measure(
            model,
            data,
            credit,
            blocks,
            samples=None,
            batch_size=size,
            n_directions=3,
            keep_samples=True,
        )
        for size in (1, 5, 23)
    ]
    for other in several[1:]:
        xr.testing.assert_allclose(several[0], other, rtol=1e-7, atol=1e-12)
        assert several[0].attrs == other.attrs


def test_samples_without_credit_stay_and_are_counted():
    def half(state):
        credit = state.gradient()
        for value in credit.values():
            value[::2] = 0
            value[:, 3] = 0  # one feature without credit does not make a sample stay
        credit[state.blocks[-1]] = torch.zeros_like(credit[state.blocks[-1]])
        return credit

    model, data = nets.make(nets.ResMLP), nets.batch(10)
    found = nudging.nudge(model, data, half, "blocks.*", samples=None, keep_samples=True)
    assert found["zero_credits"].values.tolist() == [5, 5, 5, 10]
    assert (found["sample_change"][:3, :, ::2] == 0).all()
    assert (found["sample_change"][:3, :, 1::2] < 0).all()
    assert np.isnan(found["loss_change"].values[3]).all()
    mean = found["sample_change"][:3].mean("sample")
    np.testing.assert_allclose(found["loss_change"][:3], mean, rtol=1e-12)


def test_tiny_credits_still_have_a_direction():
    model, data = nets.make(nets.ResMLP), nets.batch(10)
    results = [
        nudging.nudge(model, data, credit, "blocks.*", samples=None, keep_samples=True)
        for credit in (
            nudging.backprop,
            lambda state: {k: v * 1e-30 for k, v in state.gradient().items()},
        )
    ]
    np.testing.assert_allclose(*(r["sample_change"] for r in results), rtol=1e-3, atol=1e-6)


def test_torchs_own_means_are_taken_over_each_sample():
    model, data = linear_network(), linear_data()
    want = nudging.nudge(
        model, data, nudging.backprop, "*", loss=lambda o, t: (o - t).square().mean(1), samples=None
    )
    for loss in (nn.functional.mse_loss, nn.MSELoss()):
        got = nudging.nudge(model, data, nudging.backprop, "*", loss=loss, samples=None)
        xr.testing.assert_allclose(got, want)


def test_a_probe_is_nudged_through_its_loss():
    model, (x, y) = nets.make(nets.ResMLP), nets.batch(16)
    probe = probes.attach(model, layers=["blocks.1", "blocks.2"], n=4, sample=x, classes=5)
    credit = nudging.auxiliary(lambda outputs, targets: probe.loss(targets))
    with probe.listening():
        found = nudging.nudge(model, (x, y), credit, ["embed", "blocks.*"], samples=None)
        given = credit(nudging.observe(model, x, y, ["embed", "blocks.*"]))
    change = found["loss_change"].sel(eta=0.01)
    assert np.isfinite(change[:4]).all()
    assert np.isnan(change[4])  # nothing of the probe is behind the last block
    assert found["zero_credits"].values.tolist() == [0, 0, 0, 0, 16]
    # The gradient with respect to the last attachment point, by hand.
    with probe.listening(), torch.enable_grad():
        kept = []
        with model.blocks[2].register_forward_hook(
            lambda *a: kept.append(a[-1].detach().requires_grad_()) or kept[0], prepend=True
        ):
            model.eval()(x)
        (by_hand,) = torch.autograd.grad(probe.loss(y) * len(x), kept)
    torch.testing.assert_close(given["blocks.2"], by_hand)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_probe_anywhere_in_the_model_is_heard(frozen):
    # Inside a block that a replay would skip, and on blocks that may need no gradient themselves.
    model, (x, y) = nets.make(nets.ResMLP), nets.batch(16)
    model.requires_grad_(not frozen)
    layers = ["blocks.0.second", "blocks.2"]
    probe = probes.attach(model, layers=layers, n=4, sample=x, classes=5)
    with probe.listening():
        state = nudging.observe(model, x, y, "blocks.[23]")
        given = nudging.auxiliary(lambda outputs, targets: probe.loss(targets))(state)
        leaf = state.hidden["blocks.2"].clone().requires_grad_()
        swap = model.blocks[2].register_forward_hook(lambda *_: leaf, prepend=True)
        with swap:
            model.eval()(x)
        (by_hand,) = torch.autograd.grad(probe.loss(y) * len(x), leaf)
    torch.testing.assert_close(given["blocks.2"], by_hand)
    assert (given["blocks.3"] == 0).all()
