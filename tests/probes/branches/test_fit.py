"""`probe.fit` against scikit-learn on the same features."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from torch import nn

import probes
from probes._branches.share_interval import share_interval
from tests.helpers.state import snapshot

LAYERS = ["0", "2"]


def make(**settings):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers).double()
    x = torch.randn(97, 5).double() + 1
    y = (x[:, 0] + x[:, 1].abs() + torch.randn(97) / 2 > 1.5).long() + (x[:, 2] > 1.5).long()
    probe = probes.attach(model, LAYERS, listen_only=True, **settings)
    features = {"0": model[0](x).detach().numpy(), "2": model[0](x).relu().detach().numpy()}
    return model, x, y, probe, features


def fitted(probe, layer):
    (weight,) = probe.branches[f"at_{layer}"].active.detach().numpy()
    return weight[:, :-1], weight[:, -1]


@pytest.mark.parametrize("batch_size", [None, 97, 10, 1])
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 50.0])
def test_ridge_is_that_of_sklearn(penalty, batch_size):
    _, x, y, probe, features = make()
    result = probe.fit((x, y), penalty=penalty, batch_size=batch_size)

    one_hot = F.one_hot(y, 3).numpy()
    for layer, h in features.items():
        theirs = Ridge(alpha=penalty).fit(h, one_hot)
        weight, bias = fitted(probe, layer)
        np.testing.assert_allclose(weight, theirs.coef_, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(bias, theirs.intercept_, rtol=1e-8, atol=1e-12)

        classifier = RidgeClassifier(alpha=penalty).fit(h, y)
        assert result["accuracy"].sel(layer=layer).item() == pytest.approx(classifier.score(h, y))


def test_a_mean_far_from_zero_costs_no_digits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3)).double()
    h = torch.randn(60, 4).double()
    y = torch.arange(60) % 3
    h[:, 0] += y
    weights = []
    for shift in (0.0, 1e6):
        probe = probes.attach(model, "0", sample=h, listen_only=True)
        probe.fit((h + shift, y), batch_size=7)
        weights.append(fitted(probe, "0")[0])
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-6, atol=1e-9)


def test_without_a_penalty_dependent_features_get_the_smallest_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3)).double()
    h = torch.randn(40, 2).double().repeat(1, 2)
    y = torch.arange(40) % 3
    probe = probes.attach(model, "0", sample=h, listen_only=True)
    probe.fit((h, y), penalty=0)

    centred = (h - h.mean(0)).numpy()
    one_hot = F.one_hot(y, 3).numpy()
    expected = np.linalg.pinv(centred) @ (one_hot - one_hot.mean(0))
    np.testing.assert_allclose(fitted(probe, "0")[0], expected.T, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_logistic_is_that_of_sklearn(penalty):
    _, x, y, probe, features = make(loss="ce")
    result = probe.fit((x, y), method="logistic", penalty=penalty)
    for layer, h in features.items():
        theirs = LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=10000).fit(h, y)
        weight, bias = fitted(probe, layer)
        np.testing.assert_allclose(weight, theirs.coef_, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(bias, theirs.intercept_, rtol=1e-3, atol=1e-4)
        assert result["accuracy"].sel(layer=layer).item() == pytest.approx(theirs.score(h, y))


def test_logistic_of_sigmoid_losses_is_one_against_the_others():
    _, x, y, probe, features = make(loss="bce")
    probe.fit((x, y), method="logistic", penalty=0.5)
    for layer, h in features.items():
        single = LogisticRegression(C=2, tol=1e-9, max_iter=10000)
        theirs = OneVsRestClassifier(single).fit(h, y).estimators_
        weight, bias = fitted(probe, layer)
        np.testing.assert_allclose(
            weight, np.concatenate([one.coef_ for one in theirs]), rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            bias, np.concatenate([one.intercept_ for one in theirs]), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_soft_targets_are_fitted_as_numbers(method):
    _model, x, y, probe, _ = make(loss="ce")
    probe.fit((x, y), method=method)
    weight, _ = fitted(probe, "0")
    probe.fit((x, F.one_hot(y, 3).double()), method=method)
    np.testing.assert_allclose(fitted(probe, "0")[0], weight, rtol=1e-9)


def test_tokens_that_count_are_the_rows():
    torch.manual_seed(0)
    tagger = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3)).double()
    ids, y = torch.randint(0, 9, (15, 6)), torch.randint(0, 3, (15, 6))
    y[0, 1:], y[3] = -100, -100
    probe = probes.attach(tagger, "1", sample=ids, listen_only=True)
    result = probe.fit((ids, y), batch_size=4)

    counts = y != -100
    h = tagger[:2](ids)[counts].detach().numpy()
    theirs = Ridge(alpha=1.0).fit(h, F.one_hot(y[counts], 3).numpy())
    np.testing.assert_allclose(fitted(probe, "1")[0], theirs.coef_, rtol=1e-8, atol=1e-12)
    assert result["n_targets"].item() == int(counts.sum())


def test_accuracy_is_that_on_test_data_with_wilsons_interval():
    _model, x, y, probe, _ = make()
    result = probe.fit((x[:60], y[:60]), test=(x[60:], y[60:]), level=0.9)

    theirs = probe.evaluate((x[60:], y[60:]))
    np.testing.assert_allclose(result["accuracy"], theirs["accuracy"][:, 0])
    np.testing.assert_allclose(result["loss"], theirs["loss"][:, 0])
    assert result.attrs["n_fitted"] == 60
    assert result.attrs["n_samples"] == 37
    assert result.attrs["measured_on"] == "test"
    assert result.attrs["made_by"] == "probes.Probe.fit"
    assert list(result.dims) == ["layer"]

    # Wilson (1927): the ends are where the share is z standard errors off.
    z = 1.6448536269514722
    for name in ("accuracy_low", "accuracy_high"):
        end = result[name].values
        error = np.sqrt(end * (1 - end) / 37)
        np.testing.assert_allclose(abs(result["accuracy"].values - end), z * error, rtol=1e-6)
    assert (result["accuracy_low"] < result["accuracy"]).all()

    low, high = share_interval(np.array([0.0, 1.0, np.nan]), np.array([5, 5, 0]), 0.95)
    assert low[0] == 0 < high[0] < 1
    assert 0 < low[1] < high[1] == 1
    assert np.isnan([low[2], high[2]]).all()


def test_model_and_pending_loss_are_left_alone():
    model, x, y, probe, _ = make()
    model.train()
    (F.cross_entropy(model(x), y)).backward()
    model(x)
    before = snapshot(model)
    random_state = torch.get_rng_state()

    probe.fit((x, y))

    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training
    probe.loss(y).backward()  # of the pass before the fit
    assert all(p.grad is not None for p in probe.parameters())


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"n": 2}, {}, "`fit`: expected one listen-only branch"),
        ({}, {"method": "lasso"}, "`method`: expected one of ridge, logistic, got 'lasso'"),
        ({}, {"penalty": -1.0}, "`penalty`: "),
        ({}, {"method": "logistic", "penalty": 0.0}, "`penalty`: "),
        ({}, {"level": 1.5}, "`level`: "),
        ({"loss": F.cross_entropy}, {"method": "logistic"}, "`method`: 'logistic' needs loss="),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(settings, options, words):
    _model, x, y, probe, _ = make(**settings)
    weights = [p.clone() for p in probe.parameters()]
    with pytest.raises(ValueError, match=words):
        probe.fit((x, y), **options)
    assert all(torch.equal(a, b) for a, b in zip(weights, probe.parameters(), strict=True))


def test_branches_that_send_gradients_data_with_nan_and_a_detached_probe_are_refused():
    model, x, y, probe, _ = make()
    sending = probes.attach(model, LAYERS, n=1)
    with pytest.raises(ValueError, match="listen_only=True"):
        sending.fit((x, y))

    weights = [p.clone() for p in probe.parameters()]
    broken = x.clone()
    broken[3, 1] = torch.nan
    for method in ("ridge", "logistic"):
        with pytest.raises(ValueError, match="NaN"):
            probe.fit((broken, y), method=method)
    assert all(torch.equal(a, b) for a, b in zip(weights, probe.parameters(), strict=True))

    probe.detach()
    with pytest.raises(RuntimeError, match="fit needs its model"):
        probe.fit((x, y))
