"""Stability over batches, and the audit."""

import numpy as np
import pytest
import torch

import nudging
import tests.helpers.nudging_models as nets
from tests.nudging.measures.test_nudge import half_square, linear_data, linear_facts, linear_network


def test_stability_is_the_mean_pairwise_cosine_of_batch_gradients():
    model, (x, y) = linear_network(), linear_data(12)
    found = nudging.stability(model, (x, y), "*", loss=half_square, n_batches=3, batch_size=4)
    for name, (_, g) in linear_facts(model, x, y).items():
        means = g.reshape(3, 4, -1).mean(1)
        pairs = [
            torch.cosine_similarity(means[i], means[j], dim=0) for i, j in [(0, 1), (0, 2), (1, 2)]
        ]
        np.testing.assert_allclose(found["stability"].sel(layer=name), np.mean(pairs), rtol=1e-9)


def test_too_few_batches_have_no_stability():
    with pytest.warns(UserWarning, match=r"stability is NaN: expected 16 samples .* data has 14"):
        found = nudging.stability(
            linear_network(), linear_data(14), "*", loss=half_square, n_batches=4, batch_size=4
        )
    assert found["stability"].isnull().all()
    why = "expected 16 samples (n_batches=4 times batch_size=4), data has 14; give smaller ones"
    assert found.attrs["invalid"] == why


@pytest.mark.parametrize(
    ("change", "fired"),
    [
        ({}, []),
        ({"scale": 1e-3}, ["scale"]),
        ({"reference": 1e3}, ["reference"]),
        ({"stability": -2.0}, ["stability"]),
        ({"frozen_accuracy": 0.55}, []),
        ({"frozen_accuracy": 0.59}, ["depth"]),
        ({"scale": 1e-3, "frozen_accuracy": 0.61}, ["scale", "depth"]),
    ],
)
def test_each_check_fires_on_the_wrong_side_of_its_threshold(change, fired):
    options = {"accuracy": 0.6, "frozen_accuracy": 0.3, "stability": 1.0} | change
    found = nudging.audit(
        nets.make(nets.ResMLP), nets.batch(80), ["embed", "blocks.*"], batch_size=10, **options
    )
    verdicts = dict(zip(found["check"].values, found["verdict"].values, strict=True))
    assert [name for name, verdict in verdicts.items() if verdict == "fired"] == fired
    assert set(verdicts.values()) <= {"fired", "passed"}
    assert found.attrs["verdict"].startswith("accuracy and alignment need" if fired else "none")


class Growing(torch.nn.Module):
    """The second state is the first one times a known growth."""

    def __init__(self, growth):
        super().__init__()
        self.one, self.two, self.growth = torch.nn.Identity(), torch.nn.Identity(), growth

    def forward(self, x):
        return self.two(self.growth * self.one(x))


@pytest.mark.parametrize(
    ("growth", "slope", "shares", "fired"),
    [
        (50.0, 1.0, (0.36, 0.34), ["stability"]),  # exactly on the thresholds: not fired
        (50.1, 1.0, (0.36, 0.341), ["scale", "stability", "depth"]),
        (2.0, 16e-7, (0.5, 0.3), ["stability"]),
        (2.0, 15.9e-7, (0.5, 0.3), ["reference", "stability"]),
    ],
)
def test_the_thresholds_are_those_of_the_protocol(growth, slope, shares, fired):
    # Over 50, below 1e-7 of the mean over 16 samples, over 0.3 (here 1), below two points.
    x = torch.ones(16, 1, dtype=torch.float64)
    found = nudging.audit(
        Growing(growth),
        (x, x),
        ["one", "two"],
        batch_size=2,
        accuracy=shares[0],
        frozen_accuracy=shares[1],
        loss=lambda o, t: slope * o[:, 0],
    )
    assert found["check"].values[found["verdict"].values == "fired"].tolist() == fired


def test_stability_up_to_a_third_is_no_alarm():
    # Two directions in turn, at an angle of known cosine c: (4 * 3 * 2 + 16 * 2 * c) / 56 over
    # the pairs of eight batches.
    for cosine, verdict in ((-0.25, "passed"), (-0.2, "fired")):
        mean = (24 + 32 * cosine) / 56
        sine = (1 - cosine**2) ** 0.5
        slopes = torch.tensor([[1.0, 0.0], [cosine, sine]], dtype=torch.float64).repeat(4, 1)
        model = torch.nn.Sequential(torch.nn.Identity())
        found = nudging.audit(
            model,
            (torch.ones_like(slopes), slopes),
            "0",
            batch_size=1,
            loss=lambda o, t: (o * t).sum(1),
        ).sel(check="stability")
        np.testing.assert_allclose(found["value"], mean, rtol=1e-9)
        assert str(found["verdict"].values) == verdict


def test_audit_has_the_numbers_of_the_measures():
    model, data = nets.make(nets.ResMLP), nets.batch(80)
    blocks = ["embed", "blocks.*"]
    found = nudging.audit(model, data, blocks, batch_size=10).set_coords("check")["value"]
    norms = nudging.alignment(model, data, nudging.backprop, blocks, samples=None, batch_size=80)
    h = norms["hidden_norm"].values
    np.testing.assert_allclose(found.sel(check="scale"), (h[1:] / h[:-1]).max(), rtol=1e-6)
    np.testing.assert_allclose(
        found.sel(check="reference"), norms["mean_loss_gradient_norm"][-1], rtol=1e-5
    )
    batches = nudging.stability(model, data, blocks, batch_size=10)["stability"]
    np.testing.assert_allclose(found.sel(check="stability"), batches.sel(layer="blocks.1"))


def test_what_was_not_measured_has_not_passed():
    with pytest.warns(UserWarning, match=r"stability is not measured: .* data has 20"):
        found = nudging.audit(
            nets.make(nets.ResMLP), nets.batch(20), "blocks.0", batch_size=10, accuracy=0.9
        )
    verdicts = found["verdict"].values.tolist()
    assert verdicts == ["not measured", "passed", "not measured", "not measured"]
    reasons = {
        "scale": "expected two blocks or more, got one",
        "reference": "",
        "stability": "expected 80 samples (n_batches=8 times batch_size=10), data has 20; "
        "give smaller ones",
        "depth": "expected `accuracy` and `frozen_accuracy`, see nudging.depth_utility",
    }
    assert dict(zip(found["check"].values, found["reason"].values, strict=True)) == reasons
    missing = ", ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
    assert found.attrs["verdict"] == f"none fired; not measured: {missing}"


def test_a_diverged_network_has_not_passed():
    model = nets.make(nets.ResMLP)
    model.blocks[2].second.weight.data.fill_(float("nan"))
    found = nudging.audit(model, nets.batch(80), ["embed", "blocks.*"], batch_size=10)
    assert found["verdict"].values.tolist()[:3] == ["not measured"] * 3
    assert ["not finite" in reason for reason in found["reason"].values] == [True] * 3 + [False]
