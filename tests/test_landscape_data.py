"""`landscape.grid`: what it is given: kinds of data, losses and metrics."""

import numpy as np
import pytest
import torch
from surfaces import make_data, make_mlp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import landscape


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
