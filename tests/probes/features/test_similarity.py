"""CKA against dense computations in float64, and against what is known of features."""

import copy
from weakref import WeakSet

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

import probes


def unbiased_dependence(k, left):
    """Song et al. (2012), equation 5, written out with matrices."""
    n = len(k)
    k, left = k - np.diag(np.diag(k)), left - np.diag(np.diag(left))
    ones = np.ones(n)
    terms = np.trace(k @ left)
    terms += (ones @ k @ ones) * (ones @ left @ ones) / ((n - 1) * (n - 2))
    terms -= 2 / (n - 2) * (ones @ k @ left @ ones)
    return terms / (n * (n - 3))


def dense_cka(x, y):
    k, left = x @ x.T, y @ y.T
    scale = unbiased_dependence(k, k) * unbiased_dependence(left, left)
    return unbiased_dependence(k, left) / scale**0.5


def make(seed=0, width=6):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    return model.append(nn.Linear(width, 3)).double()


def features(model, x):
    activations = []
    for module in model:
        x = module(x)
        activations.append(x.detach().numpy())
    return activations


def test_in_one_batch_it_is_the_dense_computation():
    first, second = make(0), make(1, width=9)
    x = torch.randn(40, 5).double()
    layers = ["0", "2", "4"]

    result = probes.similarity(first, second, x, layers=layers, samples=None, batch_size=40)

    ours, theirs = features(first, x), features(second, x)
    for layer in layers:
        for other in layers:
            expected = dense_cka(ours[int(layer)], theirs[int(other)])
            value = result["cka"].sel(layer=layer, other_layer=other).item()
            np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert result["cka_low"].isnull().all()
    assert result.attrs["n_samples"] == 40


def test_in_batches_dependences_are_averaged_before_they_are_divided():
    first, second = make(0), make(1)
    x = torch.randn(50, 5).double()
    result = probes.similarity(first, second, x, layers=["2"], samples=None, batch_size=20)

    sums = np.zeros(3)
    for rows in (slice(0, 20), slice(20, 40), slice(40, 50)):  # unequal batches
        a, b = features(first, x[rows])[2], features(second, x[rows])[2]
        grams = a @ a.T, b @ b.T
        pairs = [(grams[0], grams[1]), (grams[0], grams[0]), (grams[1], grams[1])]
        sums += len(a) * np.array([unbiased_dependence(*pair) for pair in pairs])
    np.testing.assert_allclose(
        result["cka"].item(), sums[0] / np.sqrt(sums[1] * sums[2]), rtol=1e-10
    )
    assert result["cka_low"].item() < result["cka"].item() < result["cka_high"].item()


def test_the_same_features_give_one_whatever_their_rotation_and_scale():
    model = make()
    x = torch.randn(90, 5).double()
    turned = copy.deepcopy(model)
    rotation = torch.linalg.qr(torch.randn(6, 6).double())[0]
    with torch.no_grad():
        turned[0].weight.copy_(3 * rotation @ model[0].weight)
        turned[0].bias.copy_(3 * rotation @ model[0].bias + 1)

    for other in (copy.deepcopy(model), turned):
        result = probes.similarity(model, other, x, layers=["0"], samples=None, batch_size=30)
        np.testing.assert_allclose(result["cka"].item(), 1, rtol=1e-10)
        np.testing.assert_allclose(result["cka_low"].item(), 1, rtol=1e-8)


class Noise(nn.Module):
    """Features that have nothing to do with the input: drawn anew from a table by its index."""

    def __init__(self, seed, width):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Embedding.from_pretrained(
            torch.randn(2000, width, generator=generator).double()
        )

    def forward(self, index):
        return self.table(index[:, 0])


def test_independent_features_give_zero_though_they_are_more_than_samples():
    """The biased estimator gives 0.9 here; this is why it is debiased."""
    index = torch.arange(2000)[:, None]
    result = probes.similarity(
        Noise(0, 500), Noise(1, 500), index, layers=["table"], samples=None, batch_size=50
    )
    assert abs(result["cka"].item()) < 0.03
    assert result["cka_low"].item() < 0 < result["cka_high"].item()

    x, y = (Noise(seed, 500)(index[:50]).numpy() for seed in (0, 1))
    centring = np.eye(50) - 1 / 50
    k, left = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    biased = (k * left).sum() / np.sqrt((k * k).sum() * (left * left).sum())
    assert biased > 0.8


def test_the_interval_covers_the_truth():
    """A shared part of the features: the truth from all samples, the intervals from few."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(4000, 3, generator=generator).double()
    tables = [
        torch.cat([shared, torch.randn(4000, 4, generator=generator).double()], 1) for _ in "ab"
    ]
    truth = dense_cka(*(table.numpy() for table in tables))

    covered = 0
    for trial in range(40):
        rows = slice(100 * trial, 100 * (trial + 1))
        models = [nn.Sequential(nn.Identity()) for _ in tables]
        inputs = torch.stack([table[rows] for table in tables], 1)

        class Pick(nn.Module):
            def __init__(self, side):
                super().__init__()
                self.side, self.out = side, nn.Identity()

            def forward(self, both):
                return self.out(both[:, self.side])

        models = [Pick(side) for side in (0, 1)]
        result = probes.similarity(
            *models, inputs, layers=["out"], samples=None, batch_size=10, level=0.9
        )
        covered += result["cka_low"].item() <= truth <= result["cka_high"].item()
    assert 30 <= covered <= 40


class Fading(Dataset):
    """Samples that are made when they are asked for, and can be counted while they are held."""

    def __init__(self):
        self.alive = WeakSet()
        self.most_alive = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        sample = torch.randn(5, generator=generator).double()
        self.alive.add(sample)
        return sample

    def collate(self, samples):
        batch = torch.stack(samples)
        self.alive.add(batch)
        self.most_alive = max(self.most_alive, sum(x.numel() for x in self.alive) // 5)
        return batch


@pytest.mark.parametrize("loader_size", [8, 16])
def test_a_loader_without_a_limit_is_never_held(loader_size):
    first, second = make(0), make(1)
    data = Fading()
    loader = DataLoader(data, batch_size=loader_size, collate_fn=data.collate)
    state = torch.get_rng_state()

    streamed = probes.similarity(first, second, loader, layers=["2"], samples=None, batch_size=8)

    # The first batch, whose shape is looked at; the latest, and the one that is being made.
    assert data.most_alive <= 4 * 8
    assert torch.equal(torch.get_rng_state(), state)
    held = torch.stack([data[i] for i in range(64)])
    expected = probes.similarity(first, second, held, layers=["2"], samples=None, batch_size=8)
    xr.testing.assert_equal(streamed, expected)
    assert streamed.attrs["n_batches"] == 8


def test_a_loader_of_small_batches_alone_is_refused():
    loader = DataLoader(
        Fading(), batch_sampler=BatchSampler(SequentialSampler(range(64)), 3, False)
    )
    with pytest.raises(ValueError, match="at least 4 samples, got batches of at most 3"):
        probes.similarity(make(), make(1), loader, layers=["2"], samples=None)


def test_a_state_dict_is_the_model_in_that_state():
    model = make()
    state = make(1).state_dict()
    x = torch.randn(30, 5).double()
    by_state = probes.similarity(model, state, x, layers=["0", "2"])
    by_model = probes.similarity(model, make(1), x, layers=["0", "2"])
    np.testing.assert_array_equal(by_state["cka"], by_model["cka"])


def test_blocks_are_found_and_positions_pooled():
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit", num_classes=5)
    images = torch.randn(12, 3, 160, 160)
    result = probes.similarity(model, model, images, batch_size=12)
    np.testing.assert_allclose(np.diag(result["cka"]), 1, rtol=1e-6)
    assert result.sizes["layer"] == len(model.blocks)


def test_constant_features_have_no_similarity():
    model = make()
    nn.init.zeros_(model[0].weight)
    result = probes.similarity(model, make(1), torch.randn(20, 5).double(), layers=["0"])
    assert result["cka"].isnull().all()


def test_what_does_not_fit_is_refused():
    model = make()
    x = torch.randn(20, 5).double()
    with pytest.raises(ValueError, match="`data`: expected a batch of at least 4 samples"):
        probes.similarity(model, model, x[:3], layers=["0"])
    with pytest.raises(ValueError, match="`batch_size`"):
        probes.similarity(model, model, x, layers=["0"], batch_size=3)
    with pytest.raises(TypeError, match="`other`: expected a module or a state dict"):
        probes.similarity(model, 3, x, layers=["0"])
    with pytest.raises(ValueError, match="`other`: is not a state dict of this model"):
        probes.similarity(model, {"a": x}, x, layers=["0"])
    with pytest.raises(ValueError, match="`other`: cannot be read beside `model`"):
        probes.similarity(model, nn.Sequential(nn.Linear(7, 3)).double(), x, layers=["0"])
    with pytest.raises(ValueError, match="`data`: expected inputs that are numbers, got NaN"):
        probes.similarity(model, model, x * torch.nan, layers=["0"])
    broken = copy.deepcopy(model)
    broken[0].bias.data[:] = torch.inf
    with pytest.raises(ValueError, match="`layers`: expected features that are finite"):
        probes.similarity(model, broken, x, layers=["0"])
    with pytest.raises(ValueError, match="other_layers"):
        probes.similarity(model, model, x, layers=["0"], other_layers=["nothing"])
    with pytest.raises(ValueError, match="`similarity`: expected a Dataset made by"):
        probes.plot_similarity(probes.similarity(model, model, x, layers=["0"])[["cka_low"]])


def test_the_matrix_is_drawn_as_it_is():
    model = make()
    result = probes.similarity(model, make(1), torch.randn(60, 5).double(), layers=["0", "2"])
    ax = probes.plot_similarity(result)
    drawn = ax.collections[0].get_array().reshape(2, 2)
    np.testing.assert_array_equal(drawn, result["cka"].values)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "2"]
    plt.close(ax.figure)
