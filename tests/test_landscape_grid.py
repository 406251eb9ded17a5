"""`landscape.grid`: coordinates, values, directions, what moves, and what it leaves behind."""

import copy

import numpy as np
import pytest
import torch
from state import snapshot
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import landscape


def make_mlp(inputs=40, width=16, classes=3, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, classes)).to(dtype)


def make_data(n=30, inputs=40, classes=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, inputs, generator=g, dtype=dtype)
    return x, torch.randint(0, classes, (n,), generator=g)


def scaled_ones(model, scale):
    return {n: torch.full_like(p, scale) for n, p in model.named_parameters() if p.dim() > 1}


def test_a_metric_that_reports_where_the_model_stands_recovers_every_coordinate():
    model = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    first = {"weight": torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()}
    second = {"weight": torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double()}
    where = {
        "first": lambda model: model.weight[0, 0].item(),
        "second": lambda model: model.weight[1, 1].item(),
        "elsewhere": lambda model: model.weight[0, 1].item(),
    }
    x = torch.ones(2, 2).double()
    surface = landscape.grid(
        model, (x, x), loss=F.mse_loss, metrics=where, directions=[first, second],
        size=(5, 4), span=(1.0, 3.0), samples=2,
    )  # fmt: skip
    assert surface["loss"].dims == ("alpha", "beta")
    np.testing.assert_array_equal(surface["alpha"], [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_array_equal(surface["beta"], [-3, -1, 1, 3])
    alpha, beta = np.meshgrid(surface["alpha"], surface["beta"], indexing="ij")
    np.testing.assert_array_equal(surface["first"], alpha)
    np.testing.assert_array_equal(surface["second"], beta)
    assert not surface["elsewhere"].any()


@pytest.mark.parametrize("n", [3, 40])  # 40 inputs: through first-layer linearity
def test_a_quadratic_model_gives_the_analytic_paraboloid(n):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, n, generator=g).double(), torch.randn(7, 2, generator=g).double()
    model = nn.Linear(n, 2).double()
    surface = landscape.grid(model, (x, y), loss=F.mse_loss, samples=7, size=9, batch_size=3)
    axes = _axes_by_hand(model, ["weight"], seed=0)
    residual = (x @ model.weight.T + model.bias - y).detach().numpy()
    slopes = [x.numpy() @ axis["weight"].T for axis in axes]
    for i, a in enumerate(surface["alpha"].values):
        for j, b in enumerate(surface["beta"].values):
            errors = ((residual + a * slopes[0] + b * slopes[1]) ** 2).mean(1)
            np.testing.assert_allclose(surface["loss"][i, j], errors.mean(), rtol=1e-12)
            se = errors.std(ddof=1) / np.sqrt(7)
            np.testing.assert_allclose(surface["loss_se"][i, j], se, rtol=1e-10)


def _axes_by_hand(model, names, seed, how="filter"):
    """Gaussian, Gram-Schmidt, then filter by filter, in numpy loops."""
    weights = {n: dict(model.named_parameters())[n].detach().numpy() for n in names}
    axes = []
    for axis in range(2):
        drawn = {}
        for name, weight in weights.items():
            import hashlib

            key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()[:8]
            g = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
            numbers = torch.randn(weight.shape, generator=g, dtype=torch.float64)
            drawn[name] = numbers.half().double().numpy()
        axes.append(drawn)
    first = np.concatenate([axes[0][n].ravel() for n in names])
    second = np.concatenate([axes[1][n].ravel() for n in names])
    share = first @ second / (first @ first)
    for name, weight in weights.items():
        axes[1][name] = axes[1][name] - share * axes[0][name]
        for drawn in axes:
            for row in range(len(weight)):
                scale = np.linalg.norm(weight[row]) / np.linalg.norm(drawn[name][row])
                drawn[name][row] *= scale
    return axes


def test_every_point_matches_a_copy_of_the_model_moved_by_hand():
    model, (x, y) = make_mlp(), make_data()
    surface = landscape.grid(model, (x, y), samples=30, size=5, batch_size=7)
    names = ["1.weight", "3.weight", "5.weight"]
    axes = _axes_by_hand(model, names, seed=0)
    for i, a in enumerate(surface["alpha"].values):
        for j, b in enumerate(surface["beta"].values):
            moved = copy.deepcopy(model)
            for name, p in moved.named_parameters():
                if name in names:
                    p.data += torch.from_numpy(a * axes[0][name] + b * axes[1][name])
            losses = F.cross_entropy(moved(x), y, reduction="none")
            right = (moved(x).argmax(1) == y).double().mean()
            np.testing.assert_allclose(surface["loss"][i, j], losses.mean().item(), rtol=1e-12)
            np.testing.assert_allclose(
                surface["loss_se"][i, j], losses.std().item() / 30**0.5, rtol=1e-10
            )
            assert surface["accuracy"][i, j] == right


def test_default_is_51_by_51_with_the_model_in_the_middle():
    model, (x, y) = make_mlp(), make_data(n=8)
    with pytest.warns(UserWarning, match="asked for 500, data has 8"):
        surface = landscape.grid(model, (x, y))
    assert dict(surface.sizes) == {"alpha": 51, "beta": 51}
    assert float(surface["alpha"][0]) == -1
    assert float(surface["beta"][-1]) == 1
    centre = surface["loss"].sel(alpha=0.0, beta=0.0).item()
    np.testing.assert_allclose(centre, F.cross_entropy(model(x), y).item(), rtol=1e-14)
    assert abs(surface.attrs["cosine_of_axes"]) < 0.1


def test_axes_of_a_real_network_are_orthogonal_and_of_both_signs():
    model, data = make_mlp(inputs=300, width=64), make_data(inputs=300)
    surface = landscape.grid(model, data, samples=4, size=2)
    assert abs(surface.attrs["cosine_of_axes"]) < 0.02
    assert surface.attrs["length_alpha"] == pytest.approx(
        np.sqrt(sum((p**2).sum().item() for p in model.parameters() if p.dim() > 1)), rel=1e-12
    )


def test_directions_depend_on_seed_and_name_alone():
    model, data = make_mlp(), make_data()
    steps = []
    for over, double in [("**.weight", True), ("3.weight", True), ("3.weight", False)]:
        own = model if double else copy.deepcopy(model).float()
        x = data[0] if double else data[0].float()
        seen = []
        torch.manual_seed(len(steps))
        landscape.grid(
            own, (x, data[1]), over=over, samples=5, size=3, normalisation="none",
            metrics={"m": lambda model, seen=seen: seen.append(model[3].weight.clone()) or 0.0},
        )  # fmt: skip
        steps.append(seen[-2] - seen[-5])  # from (0, 0) to (1, 0)
    # Only Gram-Schmidt mixes parameters, in the second axis: the first is bitwise the same.
    np.testing.assert_array_equal(steps[0], steps[1])
    np.testing.assert_allclose(steps[2].double(), steps[1], atol=1e-6)
    assert steps[1].min() < 0 < steps[1].max()


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


def test_recomputed_batch_norm_uses_the_statistics_of_each_point():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    x, y = make_data()
    before = snapshot(model)
    kwargs = {"samples": 30, "size": 3, "batch_size": 30}
    frozen = landscape.grid(model, (x, y), **kwargs)
    fresh = landscape.grid(model, (x, y), bn="recompute", **kwargs)
    assert snapshot(model) == before
    axes = _axes_by_hand(model, ["0.weight", "2.weight"], seed=0)
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


def test_a_transposed_convolution_is_normalised_by_output_channel():
    torch.manual_seed(0)
    model = nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False).double()
    seen = []
    landscape.grid(
        model, (torch.randn(2, 4, 5).double(),) * 2, loss=lambda o, t: o.mean(), samples=2, size=3,
        metrics={"m": lambda model: seen.append(model.weight.detach().clone()) or 0.0},
    )  # fmt: skip
    step = seen[-2] - model.weight  # alpha = 1, beta = 0
    # Output channel `o` of group `g` reads the input channels of its group.
    for group in range(2):
        for out in range(3):
            rows = slice(2 * group, 2 * group + 2)
            ours, theirs = step[rows, out].norm(), model.weight[rows, out].norm()
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


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
