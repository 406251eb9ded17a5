import inspect

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import gradients
import probes
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses

# Before scipy 1.15 the argument had another name.
HAS_RNG = "rng" in inspect.signature(scipy.stats.bootstrap).parameters
RANDOM = "rng" if HAS_RNG else "random_state"


def test_compare_equals_autograd_and_leaves_the_losses_usable():
    model, batch = make_network(dropout=0.0), make_batch()
    losses = two_losses(model, *batch)
    main, auxiliary = (gradients_of(loss, model) for loss in losses)
    found = gradients.compare(model, losses)

    assert all(p.grad is None for p in model.parameters())
    names = ["stem.1.weight", "stem.1.bias"]
    a, b = (torch.cat([g[n].flatten() for n in names]) for g in (main, auxiliary))
    np.testing.assert_allclose(found["dot"].sel(layer="stem.1"), (a @ b).item(), rtol=1e-12)
    assert np.isnan(found["dot"].sel(layer="head"))
    sum(losses).backward()  # the graph is still there
    trace = gradients.Trace(model)
    trace.backward(*two_losses(model, *batch))
    for name, value in trace.to_dataset().isel(step=0).data_vars.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10)
    with pytest.raises(ValueError, match="'bce': expected a scalar tensor"):
        gradients.compare(model, {"ce": losses[0], "bce": torch.zeros(3)})
    with pytest.raises(TypeError, match="`losses`: expected scalars by name or in order"):
        gradients.compare(model, losses[0])
    main, auxiliary = two_losses(model, *batch)
    named = gradients.compare(model, {"ce": main, "bce": auxiliary})
    assert named.attrs["objectives"] == "ce, bce"


def test_initial_norm_is_that_of_the_whole_sample_and_diluted_by_branches():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = make_batch(size=23)
    F.cross_entropy(model(x), y).backward()
    expected = {
        layer: (
            model[int(layer)].weight.grad.square().sum()
            + model[int(layer)].bias.grad.square().sum()
        )
        for layer in "02"
    }
    n = sum(p.numel() for p in model.parameters())
    model.zero_grad()
    branches = nn.ModuleList([nn.Linear(6, 3, bias=False).requires_grad_(i == 0) for i in range(5)])

    found = gradients.initial_norm(model, (x, y), branches, samples=None, batch_size=5)

    whole = sum(expected.values()).sqrt().item()
    for layer, square in expected.items():
        np.testing.assert_allclose(
            found["gradient_norm"].sel(layer=layer), square.sqrt().item(), rtol=1e-12
        )
    np.testing.assert_allclose(found["norm_backbone"], whole, rtol=1e-12)
    np.testing.assert_allclose(found["norm_everything"], whole, rtol=1e-12)
    np.testing.assert_allclose(found["rms_backbone"], whole / n**0.5, rtol=1e-12)
    np.testing.assert_allclose(found["rms_everything"], whole / (n + 90) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(found["dilution"], (n / (n + 90)) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(found["loss"], F.cross_entropy(model(x), y).item(), rtol=1e-12)
    same = gradients.initial_norm(model, (x, y), 90, samples=None)
    np.testing.assert_allclose(same["reduction"], found["reduction"])

    # Four tensors in the model, and one in each of five branches.
    np.testing.assert_allclose(found["dilution_by_tensor"], (4 / (4 + 5)) ** 0.5, rtol=1e-12)
    assert np.isnan(same["dilution_by_tensor"])
    same = gradients.initial_norm(model, (x, y), 90, branch_tensors=5, samples=None)
    np.testing.assert_array_equal(same["reduction_by_tensor"], found["reduction_by_tensor"])
    alone = gradients.initial_norm(model, (x, y), samples=None)
    np.testing.assert_array_equal(alone["dilution_by_tensor"], 1)

    with pytest.raises(ValueError, match="`branches`: expected a module"):
        gradients.initial_norm(model, (x, y), -1, samples=None)
    with pytest.raises(ValueError, match="`branch_tensors`: expected a whole number of at least 0"):
        gradients.initial_norm(model, (x, y), 90, branch_tensors=-5, samples=None)
    with pytest.raises(ValueError, match="`branch_tensors`: goes with a number of weights"):
        gradients.initial_norm(model, (x, y), branches, branch_tensors=5, samples=None)
    each = nn.CrossEntropyLoss(reduction="none")
    same = gradients.initial_norm(model, (x, y), loss=each, samples=None)
    np.testing.assert_allclose(same["norm_backbone"], whole, rtol=1e-12)
    with pytest.raises(ValueError, match="`model`: expected parameters that require gradients"):
        gradients.initial_norm(model.requires_grad_(False), (x, y), samples=None)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.3, 0.2, -0.1], "synergy"),
        ([-0.3, -0.8, 0.1], "conflict"),
        ([0.05, 0.01, 0.02], "incoherent"),  # too small
        ([0.9, -0.1, -0.1, 0.4, -0.2], "incoherent"),  # large on average, but of either sign
        ([np.nan, np.nan], "undefined"),
        ([np.nan, 0.5], "synergy"),
    ],
)
def test_summarise(values, verdict):
    trace = xr.Dataset({"cosine_total": ("step", values)}, {"step": range(len(values))})
    found = gradients.summarise(trace)
    known = np.array(values)[~np.isnan(values)]
    assert found["verdict"].item() == verdict
    if len(known):
        np.testing.assert_allclose(found["mean"], known.mean())
        np.testing.assert_allclose(found["min"], known.min())
        np.testing.assert_allclose(found["max"], known.max())
        np.testing.assert_allclose(found["final"], values[-1])
        np.testing.assert_allclose(found["conflict_share"], (known < 0).mean())
    assert found["n_steps"] == len(known)
    assert "synergy: mean >= 0.1" in found.attrs["rule"]


def test_summarise_by_layer_and_of_nothing():
    cosine = xr.DataArray([[0.5, -0.5], [0.7, -0.9]], dims=("step", "layer"))
    trace = xr.Dataset({"cosine": cosine}, {"step": [0, 1], "layer": ["a", "b"]})
    found = gradients.summarise(trace, "cosine")
    assert found["verdict"].values.tolist() == ["synergy", "conflict"]
    told = r"`variable`: expected one over `step` \(cosine\), got 'cosine_total'"
    with pytest.raises(ValueError, match=told):
        gradients.summarise(trace)
    for setting in ({"margin": -1}, {"share": 3}, {"share": "most"}):
        with pytest.raises(ValueError, match="expected a number from 0 to 1"):
            gradients.summarise(trace, "cosine", **setting)


@pytest.mark.parametrize("verb", [gradients.summarise, gradients.plot_trace, gradients.plot_layers])
def test_a_trace_without_a_step_says_how_to_record_one(verb):
    model = make_network()
    trace = gradients.Trace(model)
    told = r"expected at least one recorded step, got none; train with trace\.backward"
    with pytest.raises(ValueError, match=told):
        verb(trace.to_dataset())
    trace.backward(*two_losses(model, *make_batch()), update=False)  # amid an update
    with pytest.raises(ValueError, match="update=True"):
        verb(trace.to_dataset())
    with pytest.raises(TypeError, match=r"got Trace; give its to_dataset\(\)"):
        verb(trace)


def test_noise_is_the_spread_of_the_batches_with_the_bootstrap_of_scipy():
    model = make_network(dropout=0.0).eval()
    x, y = make_batch(size=120)
    found = gradients.noise(
        model,
        (x, y),
        lambda x, y: two_losses(model, x, y),
        samples=None,
        batch_size=5,
        resamples=4000,
        confidence=0.9,
    )

    cosines = []
    for a, b in zip(x.split(5), y.split(5), strict=True):
        one = gradients.compare(model, two_losses(model, a, b))
        cosines.append(one["cosine_total"].item())
    np.testing.assert_allclose(found["cosine_total"], cosines, rtol=1e-12)
    np.testing.assert_allclose(found["variance_total"], np.var(cosines, ddof=1), rtol=1e-12)
    for name, statistic in (("mean", np.mean), ("variance", lambda v, axis: v.var(axis, ddof=1))):
        interval = scipy.stats.bootstrap(
            (cosines,),
            statistic,
            n_resamples=4000,
            confidence_level=0.9,
            method="percentile",
            **{RANDOM: np.random.default_rng(1)},
        ).confidence_interval
        width = interval.high - interval.low
        np.testing.assert_allclose(found[f"{name}_total_low"], interval.low, atol=0.06 * width)
        np.testing.assert_allclose(found[f"{name}_total_high"], interval.high, atol=0.06 * width)
    for layer in ("", "stem.0", "stem.1"):  # each has its own interval
        at = found.sel(layer=layer)
        interval = scipy.stats.bootstrap(
            (at["cosine"].values,),
            np.mean,
            n_resamples=4000,
            confidence_level=0.9,
            method="percentile",
            **{RANDOM: np.random.default_rng(1)},
        ).confidence_interval
        width = interval.high - interval.low
        np.testing.assert_allclose(at["mean_low"], interval.low, atol=0.06 * width)
        np.testing.assert_allclose(at["mean_high"], interval.high, atol=0.06 * width)
    assert found["mean_low"].sel(layer=["head", "side"]).isnull().all()
    with pytest.raises(ValueError, match="at least two mini-batches, got 1"):
        gradients.noise(model, (x, y), lambda x, y: (), samples=None, batch_size=120)
    with pytest.raises(ValueError, match="`losses`: expected two, got 1"):
        gradients.noise(model, (x, y), lambda x, y: [model(x)[0].sum()], samples=None)


@pytest.mark.parametrize(("branches", "percent"), [(1, -3.0), (20, -33.5), (300, -77.6)])
def test_dilution_alone_gives_nearly_the_published_reduction_of_the_transformer(branches, percent):
    # Table 4 prints -3.40, -33.68 and -68.78; the main loss's gradient is the same in all cases.
    from lab.backbones import asymmetric_paper as backbones

    torch.manual_seed(0)
    model = backbones.vit6(classes=100)
    data = torch.randn(4, 3, 32, 32), torch.arange(4)
    weights = branches * 6 * 128 * 100  # six blocks of width 128, a hundred classes
    found = gradients.initial_norm(model, data, weights, samples=None)
    plain = gradients.initial_norm(model, data, samples=None)
    assert round(found["reduction"].item(), 1) == percent
    np.testing.assert_array_equal(found["norm_everything"], plain["norm_backbone"])


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_a_probe_counts_with_its_static_branches_stored_or_not(method):
    model, data = make_network(dropout=0.0), make_batch(size=30)
    n_model = sum(p.numel() for p in model.parameters())
    t_model = len(list(model.parameters()))
    with probes.attach(model, n=7, method=method, sample=data[0][:2]) as probe:
        found = gradients.initial_norm(model, data, probe, samples=None)
        widths = [layer.width for layer in probe.branches.values()]
        n_heads = sum(7 * probe.settings.classes * width for width in widths)

    assert found["n_everything"] == n_model + n_heads
    assert found["n_tensors_everything"] == t_model + 7 * len(widths)


def test_results_say_of_how_many_samples_and_of_which_loss_they_are():
    model = make_network(dropout=0.0)
    data = make_batch(size=30)
    spread = gradients.noise(
        model, data, lambda x, y: two_losses(model, x, y), samples=24, batch_size=7, resamples=5
    )
    assert spread.attrs["n_samples"] == 24

    linear = nn.Linear(4, 3).double()
    norms = gradients.initial_norm(linear, data, loss=nn.CrossEntropyLoss(), samples=None)
    assert norms.attrs["n_samples"] == 30
    assert norms.attrs["loss"] == "CrossEntropyLoss"
    assert {"samples", "loss_fn"}.isdisjoint(norms.attrs)


def test_summaries_are_made_under_either_spelling():
    assert gradients.summarize is gradients.summarise


def test_the_share_of_conflicts_is_of_layers_in_a_trace_and_of_steps_in_its_summary():
    cosine = np.array([[0.5, -0.5, -0.1, np.nan], [0.2, 0.3, -0.4, np.nan]])
    parts = {"dot": cosine, "norm_main": np.ones_like(cosine), "norm_aux": np.ones_like(cosine)}
    trace = xr.Dataset({name: (("step", "layer"), values) for name, values in parts.items()})
    trace = trace.assign_coords(step=[0, 1], layer=list("abcd"))

    by_step = gradients.regroup(trace, list("abcd"))["conflict_share"]
    np.testing.assert_allclose(by_step, [2 / 3, 1 / 3])  # of the three layers with a cosine
    assert by_step.attrs["long_name"] == "share of layers whose gradients conflict"

    by_layer = gradients.summarise(trace.assign(cosine=trace["dot"]), "cosine")["conflict_share"]
    np.testing.assert_allclose(by_layer, [0, 0.5, 1, np.nan])
    assert by_layer.attrs["long_name"] == "share of steps with a negative cosine"


class ByKeyword(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, *, pixels, factor):
        return self.linear(pixels) * factor


def test_initial_norm_calls_a_model_as_its_inputs_ask_for():
    x, y = make_batch(size=10)
    linear = nn.Linear(4, 3).double()
    expected = gradients.initial_norm(linear, (x, y), samples=None)
    inputs = {"pixels": x, "factor": torch.ones(10, 1).double()}
    named = gradients.initial_norm(ByKeyword(linear), (inputs, y), samples=None)
    np.testing.assert_array_equal(named["norm_backbone"], expected["norm_backbone"])
    assert named.attrs["n_samples"] == 10
