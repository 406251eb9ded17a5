"""The noise of gradients, from the micro-batches of a training."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from gradients import Trace, noise_scale, read_trace, regroup
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses

MEANS = {"early": 0.5, "late": -0.3}  # of each of the 4 inputs of a layer
DEVIATIONS = {"early": 1.0, "late": 2.0}


def gaussian_record(n_micro_batches, n_steps=150, size=3):
    """The gradient of a sample is its input, of known mean and covariance."""
    model = nn.ModuleDict({name: nn.Linear(4, 1, bias=False) for name in MEANS}).double()
    generator = torch.Generator().manual_seed(n_micro_batches)
    trace = Trace(model, noise=True)

    for _ in range(n_steps):
        for i in range(n_micro_batches):
            outputs = {}
            for name, mean in MEANS.items():
                x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
                outputs[name] = model[name](mean + DEVIATIONS[name] * x).mean() / n_micro_batches
            auxiliary = 3 * outputs["early"]
            trace.backward(sum(outputs.values()), auxiliary, update=i == n_micro_batches - 1)
    return trace.to_dataset()


@pytest.mark.parametrize("n_micro_batches", [2, 4, 8])
def test_it_is_unbiased_where_mean_and_covariance_are_known(n_micro_batches):
    size, n_steps = 3, 150
    record = gaussian_record(n_micro_batches, n_steps, size)
    whole = noise_scale(record, batch_size=size, resamples=1)

    # Ten steps at a time, for the standard error.
    parts = [
        noise_scale(record.isel(step=slice(i, i + 10)), batch_size=size, resamples=1)
        for i in range(0, n_steps, 10)
    ]
    repeated = xr.concat(parts, "repetition")
    for objective, factor in (("main", 1.0), ("auxiliary", 9.0)):
        for layer in MEANS if objective == "main" else ["early"]:
            truths = {
                "squared_norm": factor * 4 * MEANS[layer] ** 2,
                "noise": factor * 4 * DEVIATIONS[layer] ** 2,
            }
            for name, truth in truths.items():
                values = repeated[name].sel(objective=objective, layer=layer)
                standard_error = float(values.std(ddof=1)) / len(parts) ** 0.5
                assert abs(float(values.mean()) - truth) < 2.5 * standard_error
                np.testing.assert_allclose(
                    whole[name].sel(objective=objective, layer=layer), values.mean(), rtol=1e-12
                )
            # In the mean over steps first, then the ratio.
            ratio = (
                values.mean()
                / repeated["squared_norm"].sel(objective=objective, layer=layer).mean()
            )
            np.testing.assert_allclose(
                whole["noise_scale"].sel(objective=objective, layer=layer), ratio, rtol=1e-12
            )

    assert whole["noise_scale"].sel(objective="auxiliary", layer="late").isnull()
    assert int(whole["n_steps"].sel(objective="main", layer="late")) == n_steps


def accumulate(model, backward, n_steps=3, n_micro_batches=3, **options):
    """Train, and give the gradients of each micro-batch, loss and parameter, by autograd alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    gradients = []
    for step in range(n_steps):
        optimizer.zero_grad()
        for i in range(n_micro_batches):
            losses = two_losses(model, *make_batch(size=5, seed=10 * step + i))
            gradients.append([gradients_of(loss, model) for loss in losses])
            shares = [loss / n_micro_batches for loss in losses]
            backward(*shares, update=i == n_micro_batches - 1)
        optimizer.step()
    return gradients


def plain_backward(main, auxiliary, update):
    (main + auxiliary).backward()


@pytest.mark.parametrize("separate", [None, True])
def test_it_is_what_pairs_of_micro_batches_give(separate):
    model = make_network(dropout=0.0)
    trace = Trace(model, noise=True, separate=separate)
    gradients = accumulate(model, trace.backward)

    scale = noise_scale(trace.to_dataset(), batch_size=5, resamples=10)

    layers = {
        "stem.0": ["weight", "bias"],
        "late.0": ["weight", "bias"],
        "side": ["weight", "bias"],
    }
    for column, objective in enumerate(("main", "auxiliary")):
        for layer, names in layers.items():
            chosen = [f"{layer}.{name}" for name in names]
            if gradients[0][column][chosen[0]] is None:
                assert scale["noise"].sel(objective=objective, layer=layer).isnull()
                continue

            rows = [torch.cat([g[column][n].flatten() for n in chosen]) for g in gradients]
            by_step = torch.stack(rows).unflatten(0, (3, 3)).numpy()
            gramians = np.einsum("sip,sjp->sij", by_step, by_step)
            others = ~np.eye(3, dtype=bool)  # different micro-batches have independent noise
            noise = 5 * by_step.var(axis=1, ddof=1).sum(-1)
            for name, expected in (
                ("squared_norm", gramians[:, others].mean()),
                ("noise", noise.mean()),
                ("noise_scale", noise.mean() / gramians[:, others].mean()),
            ):
                actual = scale[name].sel(objective=objective, layer=layer)
                if name == "noise_scale" and expected < 0:
                    expected = np.inf
                np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_groups_of_layers_add_up():
    record = gaussian_record(2, n_steps=12)
    scale = noise_scale(record, batch_size=3)
    whole = noise_scale(regroup(record, {"all": "**"}), batch_size=3).sel(layer="all")

    for name in ("squared_norm", "noise", "noise_scale"):
        for end in ("", "_low", "_high"):
            total = scale[f"{name}_total{end}"]
            np.testing.assert_allclose(whole[f"{name}{end}"], total, rtol=1e-12)
            if name != "noise_scale" and not end:
                np.testing.assert_allclose(scale[name].sum("layer"), total, rtol=1e-12)
        low, middle, high = (scale[f"{name}_total{end}"] for end in ("_low", "", "_high"))
        assert ((low < middle) & (middle < high)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_bitwise_what_it_is_without(dtype):
    plain, traced = make_network(dtype=dtype), make_network(dtype=dtype)
    records = []
    for model, noise in ((plain, None), (traced, True), (make_network(dtype=dtype), False)):
        trace = None if noise is None else Trace(model, noise=noise)
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(4):
            x, y = make_batch(seed=step, dtype=dtype)
            main, auxiliary = two_losses(model, x, y)
            backward = plain_backward if trace is None else trace.backward
            backward(main, auxiliary, update=step % 2 == 1)
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        records.append(None if trace is None else trace.to_dataset())

    states = zip(plain.state_dict().values(), traced.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in states)
    xr.testing.assert_identical(
        records[1][list(records[2].data_vars)].drop_vars("objective", errors="ignore"), records[2]
    )


def test_one_micro_batch_is_nan_and_does_not_count():
    model = make_network(dropout=0.0)
    trace = Trace(model, noise=True)
    accumulate(model, trace.backward, n_steps=2)
    accumulate(model, trace.backward, n_steps=1, n_micro_batches=1)
    record = trace.to_dataset()
    assert record["n_micro_batches"].values.tolist() == [3, 3, 1]

    alone = noise_scale(record.isel(step=[2]), batch_size=5)
    assert alone["noise"].isnull().all()
    assert alone["noise_scale_total_low"].isnull().all()
    assert (alone["n_steps"] == 0).all()

    scale = noise_scale(record, batch_size=5)
    expected = noise_scale(record.isel(step=[0, 1]), batch_size=5)
    np.testing.assert_array_equal(scale["noise_scale"], expected["noise_scale"])


def test_a_gradient_that_drowns_has_a_noise_scale_without_upper_end():
    # Gradients +1 and -1: their mean is zero, and the estimate of its square is -1.
    values = {"squared_norm": 0.0, "micro_batch_squared_norm": 1.0}
    record = xr.Dataset(
        {name: (("step", "layer", "objective"), [[[v]]] * 2) for name, v in values.items()}
        | {"n_micro_batches": ("step", [2, 2])},
        {"step": [0, 1], "layer": ["a"], "objective": ["main"]},
    )

    scale = noise_scale(record, batch_size=4)

    assert scale["squared_norm"].item() == -1
    assert scale["noise"].item() == 8
    assert scale["noise_scale"].item() == scale["noise_scale_high"].item() == np.inf


def test_checkpoints_and_files_keep_the_norms(tmp_path):
    model = make_network(dropout=0.0)
    trace = Trace(model, noise=True, path=tmp_path / "trace.jsonl")
    accumulate(model, trace.backward)
    record = trace.to_dataset()

    xr.testing.assert_identical(read_trace(tmp_path / "trace.jsonl"), record)
    resumed = Trace(model, noise=True)
    resumed.load_state_dict(trace.state_dict())
    xr.testing.assert_identical(resumed.to_dataset(), record)
    assert trace.latest["n_micro_batches"] == 3


def test_what_cannot_be_told_is_refused():
    model = make_network()
    with pytest.raises(ValueError, match=r"`noise`: expected False .* level='activation'"):
        Trace(model, level="activation", layers="head", noise=True)
    with pytest.raises(TypeError, match="`noise`: expected True or False, got 'yes'"):
        Trace(model, noise="yes")

    trace = Trace(model)
    accumulate(model, trace.backward, n_steps=1)
    with pytest.raises(ValueError, match=r"record with Trace\(model, noise=True\)"):
        noise_scale(trace.to_dataset(), batch_size=5)

    record = gaussian_record(2, n_steps=2)
    for part in ({"step": 0}, {"layer": 0}, {"objective": 0}):
        with pytest.raises(ValueError, match=rf"`trace`: .* trace.isel\({next(iter(part))}="):
            noise_scale(record.isel(part), batch_size=3)
    for options, argument in (
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": 3, "resamples": 0}, "resamples"),
        ({"batch_size": 3, "confidence": 95}, "confidence"),
        ({"batch_size": 3, "seed": -1}, "seed"),
    ):
        with pytest.raises(ValueError, match=f"`{argument}`"):
            noise_scale(record, **options)
