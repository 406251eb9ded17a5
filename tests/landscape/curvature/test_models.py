"""Curvature of other models, streamed over loaders, mapped over planes, and refused."""

import copy
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import landscape
from tests.helpers.dense_curvature import dense_hessian, make
from tests.helpers.state import snapshot
from tests.helpers.surfaces import make_data, make_mlp


def test_unused_parameters_are_flat_directions():
    model, data = make()
    model.register_parameter("unused", nn.Parameter(torch.ones(3, 3).double()))
    reference, _ = make()
    settings = {"samples": 20, "k": 2, "tolerance": 1e-9, "density_runs": 0}
    found = landscape.curvature(model, data, **settings)
    expected = landscape.curvature(reference, data, **settings)
    np.testing.assert_allclose(found["largest"], expected["largest"], rtol=1e-7)
    assert found.attrs["n_covered"] == expected.attrs["n_covered"] + 9


def test_a_timm_vision_transformer_is_differentiated_twice_as_it_is():
    import timm

    torch.manual_seed(0)
    settings = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    model = timm.models.VisionTransformer(**settings, num_classes=3).double()
    x, y = torch.randn(6, 3, 8, 8).double(), torch.arange(6) % 3
    before = snapshot(model)
    found = landscape.curvature(model, (x, y), samples=6, k=1, trace_probes=2, density_runs=0)
    assert snapshot(model) == before
    # Oracle: second difference of the loss along the top eigenvector.
    (direction,) = landscape.eigenvectors(model, (x, y), samples=6, k=1, tolerance=1e-8)
    model.eval()
    losses = []
    for step in (-1e-4, 0.0, 1e-4):
        moved = {n: p.detach() + step * direction[n] for n, p in model.named_parameters()}
        losses.append(F.cross_entropy(functional_call(model, moved, (x,)), y).item())
    second = (losses[0] - 2 * losses[1] + losses[2]) / 1e-8
    np.testing.assert_allclose(found["largest"][0], second, rtol=1e-3)


def test_top_five_take_at_most_fifteen_products_on_the_digits():
    import sklearn.datasets as datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float()[:500] / 16
    y = torch.from_numpy(labels)[:500]
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    exact = landscape.curvature(model, (x, y), k=5, tolerance=1e-7, density_runs=0, trace_probes=0)
    few = landscape.curvature(
        model, (x, y), k=5, max_products=15, tolerance=0.0, density_runs=0, trace_probes=0
    )
    assert few.attrs["products_eigenvalues"] <= 15
    np.testing.assert_allclose(few["largest"], exact["largest"], rtol=1e-3)


class Watched(Dataset):
    """Counts how many of its batches are alive at once."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(n, 5, generator=g).double(), torch.arange(n) % 4
        self.alive, self.most = [], 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])

    def collate(self, items):
        batch = torch.stack([x for x, _ in items])
        self.alive = [ref for ref in self.alive if ref() is not None]
        self.alive.append(weakref.ref(batch))
        self.most = max(self.most, len(self.alive))
        return batch, torch.tensor([y for _, y in items])


def test_curvature_streams_a_loader_in_constant_memory():
    model, _ = make()
    data = Watched(90)  # the last batch is shorter
    loader = DataLoader(data, batch_size=4, collate_fn=data.collate)
    found = landscape.curvature(
        model, loader, samples=None, k=2, memory=0, density_runs=0, trace_probes=0, max_products=30
    )
    assert data.most <= 3
    dense = np.linalg.eigvalsh(dense_hessian(model, (data.x, data.y)))
    np.testing.assert_allclose(found["largest"], dense[::-1][:2], rtol=1e-3)


def test_a_loader_that_changes_is_refused_when_streamed():
    class Drifting(Dataset):
        count = 0

        def __len__(self):
            return 8

        def __getitem__(self, index):
            self.count += 1
            return torch.full((5,), float(self.count)).double(), index % 4

    with pytest.raises(ValueError, match="`data`: gives other samples on a second pass"):
        landscape.curvature(make()[0], DataLoader(Drifting(), batch_size=4), samples=None)


def test_curvature_map_agrees_with_curvature_at_the_centre():
    model, data = make()
    found = landscape.curvature_map(model, data, samples=20, size=3, over="**", tolerance=1e-10)
    values = np.linalg.eigvalsh(dense_hessian(model, data))
    centre = found.sel(alpha=0, beta=0)
    np.testing.assert_allclose(centre["largest"], values[-1], rtol=1e-8)
    np.testing.assert_allclose(centre["smallest"], values[0], atol=1e-9 * values[-1])
    np.testing.assert_allclose(centre["ratio"], values[0] / values[-1], rtol=1e-5)
    surface = landscape.grid(model, data, samples=20, size=3, over="**")
    np.testing.assert_allclose(found["loss"], surface["loss"], rtol=1e-12)


def test_curvature_map_measures_every_point_where_the_weights_are():
    # Enough points and inputs for a grid to let the first layer answer without moving its weights:
    # here all of them must be there, since they are differentiated.
    model = make_mlp(inputs=32, width=4)
    data = make_data(inputs=32)
    generator = torch.Generator().manual_seed(1)
    first, second = (
        {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for name, p in model.named_parameters()
        }
        for _ in range(2)
    )
    settings = {"directions": [first, second], "over": "**", "size": 4, "tolerance": 1e-10}
    mapped = landscape.curvature_map(model, data, max_products=200, **settings)

    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in moved.named_parameters():
            p += first[name] - second[name]
    values = np.linalg.eigvalsh(dense_hessian(moved, data))
    corner = mapped.sel(alpha=1, beta=-1)
    np.testing.assert_allclose(corner["largest"], values[-1], rtol=1e-8)
    np.testing.assert_allclose(corner["smallest"], values[0], rtol=1e-6)


def test_limits_may_be_infinite():
    model, data = make()
    settings = {"samples": 20, "k": 1, "trace_probes": 0, "density_runs": 0}
    expected = landscape.curvature(model, data, **settings)
    unlimited = landscape.curvature(model, data, memory=float("inf"), **settings)
    np.testing.assert_array_equal(unlimited["largest"], expected["largest"])
    rough = landscape.curvature(model, data, tolerance=float("inf"), **settings)
    assert rough.attrs["products_eigenvalues"] == 2


def test_no_curvature_at_all():
    model = nn.Linear(3, 2).double()
    data = torch.randn(4, 3).double(), torch.zeros(4, 2).double()
    found = landscape.curvature(model, data, loss=lambda o, y: o.mean(), samples=4, k=2)
    np.testing.assert_array_equal(found["largest"], 0)
    np.testing.assert_array_equal(found["trace"], 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"k": 0}, "`k`"),
        ({"tolerance": -1.0}, "`tolerance`: expected a number of at least 0"),
        ({"tolerance": float("nan")}, "`tolerance`"),
        ({"trace_tolerance": "a"}, "`trace_tolerance`"),
        ({"memory": -1}, "`memory`"),
        ({"max_products": 0}, "`max_products`"),
        ({"matrix": "fisher"}, "`matrix`: expected one of hessian"),
        ({"trace_probes": -1}, "`trace_probes`"),
        ({"over": "nowhere"}, "`over`"),
        (
            {"matrix": "gauss-newton", "loss": lambda model, x, y: model(x).sum()},
            "`loss`: Gauss-Newton needs",
        ),
    ],
)
def test_bad_input_is_refused(change, told):
    model, data = make()
    with pytest.raises(ValueError, match=told):
        landscape.curvature(model, data, **({"samples": 20} | change))


def test_tensor_datasets_and_loaders_give_the_same():
    model, data = make()
    expected = landscape.curvature(model, data, samples=20, k=1, density_runs=0)
    loader = DataLoader(TensorDataset(*data), batch_size=20)
    found = landscape.curvature(model, loader, samples=None, k=1, density_runs=0)
    np.testing.assert_allclose(found["largest"], expected["largest"], rtol=1e-12)


def test_curvature_is_unknown_where_the_loss_is_not_finite():
    model, data = make()
    with pytest.warns(UserWarning, match="the curvature is not finite"):
        found = landscape.curvature(
            model, data, loss=lambda o, y: o.mean() * torch.nan, samples=20, k=2, trace_probes=5
        )
    for name in ("largest", "smallest", "largest_residual", "trace", "density"):
        assert found[name].isnull().all(), name

    def breaking(model, x, y):  # beyond a line
        return F.cross_entropy(model(x), y) * (1.0 if model[0].bias[0] < start + 0.5 else torch.nan)

    start = model[0].bias[0].item()
    right = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    up = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    right["0.bias"][0], up["0.bias"][0] = 1.0, 0.0
    settings = {"loss": breaking, "directions": [right, up], "over": "**", "samples": 20, "size": 3}
    before = snapshot(model)
    mapped = landscape.curvature_map(model, data, **settings)
    assert mapped["largest"].sel(alpha=1).isnull().all()
    assert np.isfinite(mapped["largest"].sel(alpha=[-1, 0])).all()
    assert snapshot(model) == before
