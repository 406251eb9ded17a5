"""`landscape.grid`: models of all kinds, and the short cuts it takes with them."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from tests.helpers.state import snapshot
from tests.helpers.surfaces import axes_by_hand, make_data, make_mlp


def test_recomputed_batch_norm_uses_the_statistics_of_each_point():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    x, y = make_data()
    before = snapshot(model)
    kwargs = {"samples": 30, "size": 3, "batch_size": 30}
    frozen = landscape.grid(model, (x, y), **kwargs)
    fresh = landscape.grid(model, (x, y), bn="recompute", **kwargs)
    assert snapshot(model) == before
    axes = axes_by_hand(model, ["0.weight", "2.weight"], seed=0)
    moved = copy.deepcopy(model)
    for name in axes[0]:
        dict(moved.named_parameters())[name].data += torch.from_numpy(axes[0][name])
    hidden = moved[0](x)
    mean, var = hidden.mean(0), hidden.var(0)  # running variances are unbiased
    normed = (hidden - mean) / (var + 1e-5).sqrt()
    expected = F.cross_entropy(moved[2](normed), y).item()
    np.testing.assert_allclose(fresh["loss"].sel(alpha=1, beta=0), expected, rtol=1e-12)
    assert frozen.attrs["batch_norm"] == "frozen statistics"
    expected = F.cross_entropy(moved.eval()(x), y).item()
    np.testing.assert_allclose(frozen["loss"].sel(alpha=1, beta=0), expected, rtol=1e-12)
    assert fresh.attrs["batch_norm"] == "recompute statistics"


class Odd(nn.Module):
    """Zero bias, a number, tied weights, an unused weight, a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 6, 3, groups=2)
        self.linear = nn.Linear(6, 6)
        self.again = self.linear
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.zeros(2, 2))
        self.head = nn.Linear(6, 3)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        hidden = self.up(x.reshape(-1, 4, 10)).mean(2)
        return self.head(self.again(self.linear(hidden).relu()) * self.scale)


@pytest.mark.parametrize("over", [None, "**"])
def test_zero_biases_numbers_tied_and_unused_parameters_run(over):
    torch.manual_seed(0)
    model, (x, y) = Odd().double(), make_data()
    before = snapshot(model)
    surface = landscape.grid(model, (x, y), over=over, samples=30, size=3)
    assert np.isfinite(surface["loss"]).all()
    assert snapshot(model) == before
    assert surface.attrs["moved"].count("linear.weight") == 1
    assert "again" not in surface.attrs["moved"]


def test_a_timm_vision_transformer_runs_at_initialisation():
    import timm

    torch.manual_seed(0)
    settings = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = timm.models.VisionTransformer(**settings, num_classes=3)
    x, y = torch.randn(6, 3, 8, 8), torch.arange(6) % 3
    before = snapshot(model)
    surface = landscape.grid(model, (x, y), samples=6, size=3)
    assert np.isfinite(surface["loss"]).all()
    assert snapshot(model) == before


def test_probes_change_nothing_on_the_backbones_own_parameters():
    model, data = make_mlp(), make_data()
    plain = landscape.grid(model, data, samples=30, size=5)
    branches = [nn.Linear(16, 3) for _ in range(4)]
    noted = []
    with model[2].register_forward_hook(
        lambda m, a, o: noted.append([b(o.float()) for b in branches])
    ):
        attached = landscape.grid(model, data, samples=30, size=5)
    assert noted
    np.testing.assert_array_equal(attached["loss"], plain["loss"])


def test_random_numbers_of_the_forward_are_the_same_at_every_point():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(40, 3).double()

        def forward(self, x):
            return self.linear(F.dropout(x, 0.5, training=True))

    torch.manual_seed(0)
    model = Noisy()
    one = {"linear.weight": torch.full((3, 40), 1e-30)}
    surface = landscape.grid(model, make_data(), directions=[one, one], samples=30, size=5)
    assert surface["loss"].values.std() == 0
    assert surface.attrs["random_numbers"] == "same at every point"


def test_first_layer_linearity_is_off_where_the_weight_is_read_elsewhere():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(40, 40, bias=False).double()
            self.head = nn.Linear(40, 3).double()

        def forward(self, x):
            # So little that the loss would not show it: nothing but the reading itself does.
            return self.head(self.inner(x).relu() + 1e-12 * (x @ self.inner.weight))

    torch.manual_seed(0)
    model, (x, y) = Tied(), make_data()
    quick = landscape.grid(model, (x, y), samples=30, size=5)
    plain = landscape.grid(  # a metric of the model forbids the short cut
        model, (x, y), samples=30, size=5, metrics={"m": lambda model: 0.0}
    )
    np.testing.assert_array_equal(quick["loss"], plain["loss"])


def test_the_number_of_threads_is_chosen_and_given_back():
    model, data = make_mlp(), make_data()
    before = torch.get_num_threads()
    surfaces = []
    try:
        for count in (2, 1):
            torch.set_num_threads(count)
            surfaces.append(landscape.grid(model, data, samples=30, size=11))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(surfaces[0]["loss"], surfaces[1]["loss"], rtol=1e-13)


def test_first_layer_linearity_leaves_the_layer_as_it_was():
    model, data = make_mlp(), make_data()
    before = snapshot(model)
    surface = landscape.grid(model, data, samples=30, size=5)
    assert np.isfinite(surface["loss"]).all()
    assert snapshot(model) == before

    def failing(outputs, targets):
        if not torch.isfinite(outputs).all() or len(outputs) < 30:
            return F.cross_entropy(outputs, targets)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        landscape.grid(model, data, loss=failing, samples=30, size=5)
    assert snapshot(model) == before
