"""Eigenvalues, trace, density and products against dense matrices and other libraries."""

import weakref

import numpy as np
import pytest
import torch
from state import snapshot
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import landscape


def make(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).to(dtype)
    x = torch.randn(20, 5, dtype=dtype)
    return model, (x, torch.arange(20) % 4)


def flat_call(model, vector, x):
    weights, start = {}, 0
    for name, p in model.named_parameters():
        weights[name] = vector[start : start + p.numel()].view_as(p)
        start += p.numel()
    return functional_call(model, weights, (x,))


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def dense_hessian(model, data):
    def loss(vector):
        return F.cross_entropy(flat_call(model, vector, data[0]), data[1])

    return hessian(loss, weights_of(model)).numpy()


def dense_gauss_newton(model, data):
    x, y = data
    weights = weights_of(model)
    slopes = jacobian(lambda vector: flat_call(model, vector, x), weights)
    total = 0
    for i in range(len(x)):
        outputs = model(x[i]).detach()
        curve = hessian(lambda out, i=i: F.cross_entropy(out[None], y[i : i + 1]), outputs)
        total = total + slopes[i].T @ curve @ slopes[i] / len(x)
    return total.detach().numpy()


DENSE = {"hessian": dense_hessian, "gauss-newton": dense_gauss_newton}


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
@pytest.mark.parametrize("memory", [2**31, 0])  # graphs kept, and made anew
def test_eigenvalues_and_trace_are_those_of_the_dense_matrix(matrix, memory):
    model, data = make()
    dense = np.linalg.eigvalsh(DENSE[matrix](model, data))
    settings = {"samples": 20, "matrix": matrix, "memory": memory, "batch_size": 7}
    found = landscape.curvature(model, data, k=4, tolerance=1e-10, density_runs=0, **settings)
    np.testing.assert_allclose(found["largest"], dense[::-1][:4], rtol=1e-9)
    # Gauss-Newton has many zeros, of which Lanczos need not find more than one.
    ends = 4 if matrix == "hessian" else 1
    np.testing.assert_allclose(found["smallest"][:ends], dense[:ends], atol=1e-9)
    assert (found["largest_residual"] < 1e-4).all()
    few = landscape.curvature(
        model, data, k=2, trace_probes=50, trace_tolerance=0.0, density_runs=0, **settings
    )
    assert few.attrs["products_trace"] == 50
    assert few["trace_se"] > 0
    np.testing.assert_allclose(few["trace"], dense.sum(), atol=4 * few["trace_se"].item())


def test_all_products_give_the_trace_exactly():
    model, data = make()
    found = landscape.curvature(model, data, k=40, samples=20, density_runs=0)
    np.testing.assert_allclose(found["trace"], np.trace(dense_hessian(model, data)), rtol=1e-9)
    assert found["trace_se"] == 0


def test_the_standard_error_of_the_trace_is_honest():
    model, data = make()
    truth = np.trace(dense_hessian(model, data))
    scores = []
    for seed in range(40):
        found = landscape.curvature(
            model, data, k=1, samples=20, seed=seed, max_products=3, trace_probes=10,
            trace_tolerance=0.0, density_runs=0,
        )  # fmt: skip
        scores.append((found["trace"].item() - truth) / found["trace_se"].item())
    # Student's t with 9 degrees of freedom: standard deviation 1.13.
    assert abs(np.mean(scores)) < 0.6
    assert 0.75 < np.std(scores) < 1.6


def test_density_integrates_to_one_with_the_right_moments():
    model, data = make()
    dense = np.linalg.eigvalsh(dense_hessian(model, data))
    found = landscape.curvature(
        model, data, samples=20, k=1, density_runs=200, density_steps=30, trace_probes=0
    )
    assert found["trace"].isnull()
    values, density = found["eigenvalue"].values, found["density"].values
    width = np.ptp(values) / 1.12 / 100  # of the bumps: the axis is 100 + 2 * 6 of them long
    np.testing.assert_allclose(np.trapezoid(density, values), 1, rtol=1e-6)
    mean = np.trapezoid(density * values, values)
    second = np.trapezoid(density * values**2, values) - width**2
    # Spread of random signs: 2 * (sum of squares off the diagonal) / n^2 / runs.
    slack = 4 * np.sqrt(2 * (dense**2).sum() / 200) / len(dense)
    np.testing.assert_allclose(mean, dense.mean(), atol=slack)
    slack = 4 * np.sqrt(2 * (dense**4).sum() / 200) / len(dense)
    np.testing.assert_allclose(second, (dense**2).mean(), atol=slack)


def test_eigenvectors_are_eigenvectors():
    model, data = make()
    dense = dense_hessian(model, data)
    found = landscape.eigenvectors(model, data, k=3, samples=20, tolerance=1e-12)
    values = np.linalg.eigvalsh(dense)[::-1]
    for value, direction in zip(values, found, strict=False):
        vector = torch.cat([direction[n].flatten() for n, _ in model.named_parameters()]).numpy()
        np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-10)
        np.testing.assert_allclose(dense @ vector, value * vector, atol=1e-5 * values[0])


def test_hessian_and_gradient_axes_of_a_grid():
    model, (x, y) = make()
    surface = landscape.grid(
        model, (x, y), directions="hessian", over="**", samples=20, size=3, span=1e-3
    )
    values = np.linalg.eigvalsh(dense_hessian(model, (x, y)))[::-1]
    loss = surface["loss"]
    for axis, value in (("alpha", values[0]), ("beta", values[1])):
        row = loss.sel({"beta" if axis == "alpha" else "alpha": 0}).values
        np.testing.assert_allclose((row[0] - 2 * row[1] + row[2]) / 1e-6, value, rtol=1e-3)
    surface = landscape.grid(
        model, (x, y), directions="gradient", over="**", samples=20, size=3, span=1e-5
    )
    row = surface["loss"].sel(beta=0).values
    F.cross_entropy(model(x), y).backward()
    steepness = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    np.testing.assert_allclose((row[2] - row[0]) / 2e-5, steepness, rtol=1e-6)
    assert abs(surface.attrs["cosine_of_axes"]) < 1e-12


@pytest.mark.filterwarnings("ignore:Using backward")  # theirs
def test_agrees_with_pyhessian():
    import pyhessian

    model, (x, y) = make(torch.float32)
    found = landscape.curvature(model, (x, y), samples=20, k=2, trace_probes=200, density_runs=0)
    theirs = pyhessian.hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    values, _ = theirs.eigenvalues(top_n=1, tol=1e-6, maxIter=1000)
    np.testing.assert_allclose(found["largest"][0], values[0], rtol=1e-3)
    truth = np.trace(dense_hessian(model, (x, y)))
    torch.manual_seed(0)
    # One probe at a time: asked for more, it stops too soon where a mean is negative.
    probes = [theirs.trace(maxIter=1)[0] for _ in range(300)]
    np.testing.assert_allclose(np.mean(probes), truth, atol=4 * np.std(probes) / 300**0.5)
    np.testing.assert_allclose(found["trace"], truth, rtol=0.05)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_agrees_with_curvlinops():
    import curvlinops

    model, (x, y) = make()
    for matrix, operator in (
        ("hessian", curvlinops.HessianLinearOperator),
        ("gauss-newton", curvlinops.GGNLinearOperator),
    ):
        theirs = operator(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
        dense = theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
        expected = np.linalg.eigvalsh(dense.detach().numpy())[::-1]
        found = landscape.curvature(
            model, (x, y), samples=20, k=3, tolerance=1e-10, matrix=matrix, density_runs=0
        )
        np.testing.assert_allclose(found["largest"], expected[:3], rtol=1e-8)


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
        ({"matrix": "fisher"}, "`matrix`: expected hessian"),
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
