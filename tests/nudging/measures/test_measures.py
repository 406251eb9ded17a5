"""Alignment and correlation against closed forms."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.nudging.measures.test_nudge import half_square, linear_data, linear_facts, linear_network

EPSILON = 1e-3


def mapped(state):
    """A credit that is neither the gradient nor unrelated, with sizes that differ by sample."""
    found = {}
    for name, g in state.gradient().items():
        turned = g.roll(1, dims=1) + 0.5 * g
        found[name] = turned * torch.linspace(0.1, 2.0, len(g)).to(g)[:, None]
    return found


def test_cosine_and_norms_are_those_of_closed_forms():
    model, (x, y) = linear_network(), linear_data()
    found = nudging.alignment(model, (x, y), mapped, "*", loss=half_square, samples=None)
    a = mapped(nudging.observe(model, x, y, "*", loss=half_square))
    hidden = x
    for i, (name, (_, g)) in enumerate(linear_facts(model, x, y).items()):
        hidden = model[i](hidden).detach()
        cosine = (a[name] * g).sum(1) / (a[name].norm(dim=1) * g.norm(dim=1))
        at = found.sel(layer=name)
        np.testing.assert_allclose(at["cosine"], cosine.mean(), rtol=1e-9)
        np.testing.assert_allclose(at["cosine_sd"], cosine.std(), rtol=1e-9)
        np.testing.assert_allclose(at["cosine_se"], cosine.std() / 12**0.5, rtol=1e-9)
        medians = {"gradient_norm": g, "hidden_norm": hidden, "credit_norm": a[name]}
        for variable, value in medians.items():
            norm = np.median(value.norm(dim=1))
            np.testing.assert_allclose(at[variable], norm, rtol=1e-9)
        np.testing.assert_allclose(
            at["mean_loss_gradient_norm"], at["gradient_norm"] / 12, rtol=1e-12
        )
    assert found["valid"].all()
    assert found.attrs["invalid"] == "none"


def test_below_the_floor_there_is_no_cosine_and_the_reason_is_kept():
    model, data = nets.make(nets.ResMLP), nets.batch(20)
    norms = nudging.alignment(model, data, nudging.backprop, "blocks.*", samples=None)
    order = np.sort(norms["mean_loss_gradient_norm"].values)
    floor = float(order[1:3].mean())
    found = nudging.alignment(model, data, nudging.backprop, "blocks.*", samples=None, floor=floor)
    small = norms["mean_loss_gradient_norm"] < floor
    assert small.sum() == 2
    assert np.isnan(found["cosine"].values[small]).all()
    np.testing.assert_allclose(found["cosine"].values[~small], 1.0, rtol=1e-6)
    assert (found["valid"] == ~small).all()
    for name in found["layer"].values[small]:
        assert f"{name}: gradient norm" in found.attrs["invalid"]
    assert "below" in found.attrs["invalid"]


def test_tiny_gradients_have_cosines_without_a_clamp():
    model, data = nets.make(nets.ResMLP), nets.batch(20)

    def faint(outputs, targets):
        return 1e-25 * nn.functional.cross_entropy(outputs, targets, reduction="none")

    results = [
        nudging.alignment(
            model,
            data,
            nudging.auxiliary(lambda o, t: o.square().sum(1)),
            "blocks.*",
            samples=None,
            floor=1e-35,
            loss=loss,
        )
        for loss in (None, faint)
    ]
    np.testing.assert_allclose(results[0]["cosine"], results[1]["cosine"], rtol=1e-4)


def test_zero_credit_has_no_cosine():
    model, data = nets.make(nets.ResMLP), nets.batch(6)

    def nothing(state):
        return {name: torch.zeros_like(h) for name, h in state.hidden.items()}

    found = nudging.measure(model, data, nothing, "blocks.*", samples=None, n_directions=2)
    for name in ("cosine", "correlation", "loss_change"):
        assert found[name].isnull().all(), name
    assert (found["credit_norm"] == 0).all()


@pytest.mark.parametrize(("sign", "rho"), [(3.0, 1.0), (-0.2, -1.0)])
def test_correlation_is_one_for_a_linear_loss(sign, rho):
    model, data = linear_network(), linear_data()

    def linear(outputs, targets):
        return (outputs * targets).sum(1)

    def scaled(state):
        return {k: sign * v for k, v in state.gradient().items()}

    found = nudging.correlation(model, data, scaled, "*", loss=linear, samples=None)
    np.testing.assert_allclose(found["correlation"], rho, rtol=1e-7)


def test_correlation_has_its_closed_form_for_a_quadratic_loss():
    # Over unit vectors v in d dimensions, E <a, v> <g, v> = <a, g> / d; the bend is of order
    # epsilon, and even in v, so that it adds nothing to the covariance.
    model, (x, y) = linear_network(), linear_data(200)
    found = nudging.correlation(
        model, (x, y), mapped, "*", loss=half_square, samples=None, n_directions=64
    )
    a = mapped(nudging.observe(model, x, y, "*", loss=half_square))
    for name, (_, g) in linear_facts(model, x, y).items():
        expected = (a[name] * g).sum() / (a[name].norm() * g.norm())
        at = found.sel(layer=name)
        error = float(at["correlation_se"])
        assert 0 < error < 0.03
        assert abs(float(at["correlation"]) - float(expected)) < 4 * error


def test_correlation_is_pearsons_of_full_passes_with_a_hook():
    model, (x, y) = nets.make(nets.ResMLP, dtype=torch.float64), nets.batch(9, dtype=torch.float64)
    found = nudging.correlation(
        model, (x, y), mapped, "blocks.*", samples=None, n_directions=5, seed=4
    )
    state = nudging.observe(model, x, y, "blocks.*")
    for name, hidden in state.hidden.items():
        # The first five directions of each sample are those of five credits drawn with its seed.
        from nudging._replay.draws import draw_directions

        directions = draw_directions(state, name, 4, "perturbation")
        pairs = []
        for _ in range(5):
            v = next(directions)
            step = EPSILON * v / v.norm(dim=1, keepdim=True)
            moved = state.losses(nets.by_hook(model, x, name, hidden + step))
            pairs.append(((mapped(state)[name] * step).sum(1), moved - state.losses()))
        predicted, true = (torch.stack(side).flatten() for side in zip(*pairs, strict=True))
        want = np.corrcoef(predicted, true)[0, 1]
        np.testing.assert_allclose(found["correlation"].sel(layer=name), want, rtol=1e-8)
        rows = [torch.stack(side) for side in zip(*pairs, strict=True)]
        left = [
            np.corrcoef(*(np.delete(row.numpy(), i, 1).ravel() for row in rows))[0, 1]
            for i in range(9)
        ]
        error = np.sqrt(8 * np.mean((left - np.mean(left)) ** 2))
        np.testing.assert_allclose(found["correlation_se"].sel(layer=name), error, rtol=1e-6)


def test_backprop_predicts_and_random_does_not():
    model, data = nets.make(nets.ResMLP), nets.batch(200)
    blocks = ["embed", "blocks.*"]
    true = nudging.measure(model, data, nudging.backprop, blocks, samples=None)
    blind = nudging.measure(model, data, nudging.random(1), blocks, samples=None)
    assert true.attrs["dtype"] == "float64"  # of a model in single precision
    assert (true["correlation"] > 0.99).all()
    np.testing.assert_allclose(true["cosine"], 1.0, rtol=1e-6)
    assert (np.abs(blind["correlation"] / blind["correlation_se"]) < 3.5).all()
    assert (np.abs(blind["cosine"] / blind["cosine_se"]) < 3.5).all()


def test_small_changes_are_measured_in_double_precision():
    model, data = nets.make(nets.ResMLP), nets.batch(50)
    tiny = {"epsilon": 1e-6, "samples": None}
    found = nudging.correlation(model, data, nudging.backprop, "blocks.*", **tiny)
    assert (found["correlation"] > 0.999).all()
    single = nudging.correlation(model, data, nudging.backprop, "blocks.*", dtype=None, **tiny)
    assert (single["correlation"] < 0.9).all()
    seen = []

    def credit(state):
        seen.extend(h.dtype for h in state.hidden.values())
        return state.gradient()

    nudging.correlation(model, data, credit, "blocks.*", n_directions=1, samples=None)
    assert set(seen) == {torch.float32}  # credits see the model as it is
    assert (found.attrs["dtype"], single.attrs["dtype"]) == ("float64", "float32")


def test_measure_is_the_three_measures_in_one_dataset():
    model, data = nets.make(nets.ResMLP), nets.batch(30)
    options = {"samples": 20, "batch_size": 8, "seed": 3, "dtype": torch.float64}
    parts = [
        verb(model, data, mapped, "blocks.*", **options)
        for verb in (nudging.nudge, nudging.alignment, nudging.correlation)
    ]
    whole = nudging.measure(model, data, mapped, "blocks.*", **options)
    merged = xr.merge(parts, join="exact", compat="equals", combine_attrs="drop_conflicts")
    xr.testing.assert_allclose(merged, whole, rtol=1e-9)
    assert set(merged.variables) == set(whole.variables)
    assert merged.attrs["credit"] == whole.attrs["credit"] == "mapped"
