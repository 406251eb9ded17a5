"""`landscape.grid`: what it is given: kinds of data, losses and metrics."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import landscape
from tests.helpers.surfaces import make_data, make_mlp


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(make_data(), id="tensors"),
        pytest.param(TensorDataset(*make_data()), id="dataset"),
        pytest.param(DataLoader(TensorDataset(*make_data()), batch_size=4), id="loader"),
        pytest.param(
            DataLoader(TensorDataset(*make_data()), batch_size=4, shuffle=True), id="shuffling"
        ),
    ],
)
def test_all_kinds_of_data_give_the_same_surface(data):
    model = make_mlp()
    expected = landscape.grid(model, make_data(), samples=12, size=3)
    np.testing.assert_array_equal(
        landscape.grid(model, data, samples=12, size=3)["loss"], expected["loss"]
    )


class Drifting(Dataset):
    """Gives another image every time it is asked."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.asked += 1
        return torch.full((40,), float(self.asked)).double(), index % 3


def test_data_that_change_between_passes_are_refused():
    with pytest.raises(ValueError, match="`data`: gives other samples on a second pass"):
        landscape.grid(make_mlp(), DataLoader(Drifting(), batch_size=5), samples=20, size=3)


def test_losses_of_every_signature_agree():
    model, data = make_mlp(), make_data()
    kwargs = {"samples": 30, "size": 3, "batch_size": 7}
    expected = landscape.grid(model, data, **kwargs)
    ways = {
        "function": F.cross_entropy,
        "module": nn.CrossEntropyLoss(),
        "mean": lambda outputs, targets: F.cross_entropy(outputs, targets),
        "closure": lambda model, x, y: F.cross_entropy(model(x), y),
        "each": lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
    }
    for name, loss in ways.items():
        got = landscape.grid(model, data, loss=loss, **kwargs)
        np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-13, err_msg=name)
        np.testing.assert_array_equal(got["accuracy"], expected["accuracy"])
        has_error = name in ("function", "module", "each")
        assert np.isfinite(got["loss_se"]).all() == has_error, name


def test_class_weights_are_respected():
    model, (x, y) = make_mlp(), make_data()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.1]).double())
    surface = landscape.grid(model, (x, y), loss=loss, samples=30, size=3, batch_size=30)
    centre = surface["loss"].sel(alpha=0, beta=0).item()
    np.testing.assert_allclose(centre, loss(model(x), y).item(), rtol=1e-14)


def test_targets_that_are_no_classes_have_no_accuracy():
    model, (x, _) = make_mlp(), make_data()
    surface = landscape.grid(model, (x, x[:, :3]), loss=F.mse_loss, samples=30, size=3)
    assert surface["accuracy"].isnull().all()


def test_metrics_of_loss_landscapes_are_accepted():
    import loss_landscapes.metrics as metrics

    model, (x, y) = make_mlp(), make_data()
    theirs = metrics.Loss(F.cross_entropy, x, y)
    surface = landscape.grid(model, (x, y), metrics={"theirs": theirs}, samples=30, size=3)
    np.testing.assert_allclose(surface["theirs"], surface["loss"], rtol=1e-13)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("ignored", [-100, 2])
def test_targets_that_the_loss_leaves_out_do_not_count(ignored):
    model, (x, y) = make_mlp(), make_data()
    y[3] = ignored
    counted = y != ignored
    own = F.cross_entropy(model(x[counted]), y[counted]).item()
    right = (model(x[counted]).argmax(1) == y[counted]).double().mean().item()
    expected = landscape.curvature(
        model, (x[counted], y[counted]), samples=None, k=1, trace_probes=0, density_runs=0
    )

    ways = [nn.CrossEntropyLoss(ignore_index=ignored)]
    if ignored == -100:
        ways += [None, F.cross_entropy, nn.CrossEntropyLoss()]
    for loss in ways:
        surface = landscape.grid(model, (x, y), loss=loss, samples=None, size=3, batch_size=4)
        centre = surface.sel(alpha=0, beta=0)
        np.testing.assert_allclose(centre["loss"], own, rtol=1e-12)
        np.testing.assert_allclose(centre["accuracy"], right, rtol=1e-12)
        assert surface.attrs["n_samples"] == counted.sum()

        for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=1)):
            curved = landscape.curvature(
                model, data, loss=loss, samples=None, k=1, trace_probes=0, density_runs=0
            )
            np.testing.assert_allclose(curved["largest"], expected["largest"], rtol=1e-8)
            assert curved.attrs["n_samples"] == counted.sum()


def test_a_loss_of_the_users_own_counts_what_it_likes():
    model, (x, y) = make_mlp(), make_data()
    y[3] = -100
    own = F.cross_entropy(model.eval()(x), y).item()

    def each(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none") * len(y) / (len(y) - 1)

    found = landscape.grid(model, (x, y), loss=each, samples=None, size=3, batch_size=4)
    np.testing.assert_allclose(found["loss"].sel(alpha=0, beta=0), own, rtol=1e-12)
    rest = nn.CrossEntropyLoss(ignore_index=7)  # no target is
    y[3] = 0
    found = landscape.grid(model, (x, y), loss=rest, samples=None, size=3, batch_size=4)
    own = F.cross_entropy(model(x), y).item()
    np.testing.assert_allclose(found["loss"].sel(alpha=0, beta=0), own, rtol=1e-12)


def test_a_loss_that_weighs_classes_is_the_models_own(monkeypatch):
    monkeypatch.setattr("landscape._evaluation.samples._WORKING_SET", 1)  # else batches of 8
    model, (x, y) = make_mlp(), make_data()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.1]).double())
    own = loss(model.eval()(x), y).item()
    found = landscape.grid(model, (x, y), loss=loss, samples=None, size=3)
    np.testing.assert_allclose(found["loss"].sel(alpha=0, beta=0), own, rtol=1e-12)


def test_a_sum_is_no_mean():
    with pytest.raises(ValueError, match=r"`loss`: expected a mean .* got reduction 'sum'"):
        landscape.grid(make_mlp(), make_data(), loss=nn.CrossEntropyLoss(reduction="sum"), size=3)


def test_one_output_is_no_choice_between_classes():
    # Not the share of targets that are 0, which is what argmax would give.
    model, (x, y) = nn.Linear(40, 1).double(), make_data()

    def binary(outputs, targets):
        return F.binary_cross_entropy_with_logits(outputs[:, 0], targets.clamp(max=1).double())

    found = landscape.grid(model, (x, y), loss=binary, samples=None, size=3)
    assert found["accuracy"].isnull().all()


@pytest.mark.parametrize(("first", "n_batches"), [(nn.Flatten(), 1), (nn.Hardtanh(-9, 9), 3)])
def test_inputs_that_are_only_seen_in_another_shape_cut_no_batches(first, n_batches):
    """1500 images of 12 kB: activations of 18 MB are cut, 9 kB of outputs are not."""
    model = nn.Sequential(first, nn.Flatten(), nn.Linear(3072, 2))
    x, y = torch.randn(1500, 3, 32, 32), torch.arange(1500) % 2
    sizes = []
    with model[2].register_forward_hook(lambda _, args, __: sizes.append(len(args[0]))):
        landscape.curvature(
            model, (x, y), samples=None, max_products=1, trace_probes=0, density_runs=0
        )
    large = [size for size in sizes if size > 2]  # the model is tried out on two
    assert large == [1500 // n_batches] * n_batches
