"""The branches that `probes.attach` makes, and that attaching changes nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from lab.backbones.asymmetric_paper import LAYERS, cnn, mlp, vit6
from tests.helpers.state import snapshot


@pytest.mark.parametrize(
    ("build", "layers", "classes", "counts"),
    [
        (mlp, "mlp", 10, ("0.28", "0.29", "0.40", "2.01")),
        (cnn, "cnn", 100, ("2.43", "2.51", "4.09", "27.39")),
        (vit6, "vit6", 100, ("1.22", "1.29", "2.75", "24.26")),
    ],
)
def test_published_parameter_counts(build, layers, classes, counts):
    """Published with three digits: 27.4 and 24.3 million at 300 branches."""
    model = build(classes)
    backbone = sum(p.numel() for p in model.parameters())
    found = [f"{backbone / 1e6:.2f}"]
    for n in (1, 20, 300):
        probe = probes.attach(model, LAYERS[layers], n=n, init=_no_numbers)
        stored = sum(t.numel() for name, t in probe.state_dict().items() if _is_branch(name, t))
        assert probe.n_parameters == stored
        found.append(f"{(backbone + stored) / 1e6:.2f}")
    assert tuple(found) == counts


def _is_branch(name, tensor):
    return isinstance(tensor, torch.Tensor) and name.endswith(("static", "active"))


def _no_numbers(weight, generator):
    weight.zero_()


def test_attaching_changes_nothing_bitwise():
    torch.manual_seed(0)
    model = vit6(10, image=8, patch=2, channels=1)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([1, 2, 3, 4])
    keys, plain = list(model.state_dict()), model(x)
    grads = torch.autograd.grad(F.cross_entropy(plain, y), list(model.parameters()))
    before = snapshot(model)
    probe = probes.attach(model, "blocks.*", n=5)
    attached = model(x)
    assert torch.equal(attached, plain)
    again = torch.autograd.grad(F.cross_entropy(attached, y), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
    assert list(model.state_dict()) == keys
    probe.detach()
    probe.detach()
    assert snapshot(model) == before


def test_static_branches_are_frozen_and_only_active_ones_are_parameters():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for active, expected in ((0, 0), (1, 18), (2, 36), ("all", 72)):
        probe = probes.attach(model, "0", n=4, active=active)
        assert sum(p.numel() for p in probe.parameters()) == expected
        static = probe._by_layer()["0"].static
        assert not static.requires_grad
        assert len(static) == 4 - expected // 18


@pytest.mark.parametrize(("classes", "width"), [(5, 9), (9, 5), (6, 6)])
def test_orthogonal_means_orthonormal_rows_or_columns_within_a_branch(classes, width):
    model = nn.Sequential(nn.Identity(), nn.Linear(width, classes)).double()
    probe = probes.attach(model, "0", n=4)
    branches = probe._by_layer()["0"]
    for weight in [*branches.static, *branches.active.detach()]:
        w = weight if classes <= width else weight.mT
        torch.testing.assert_close(w @ w.mT, torch.eye(len(w)).double(), atol=1e-13, rtol=0)
    assert branches.orthogonality_error < 1e-13


@pytest.mark.parametrize("init", ["normal", "default"])
def test_other_initialisations_have_their_variance(init):
    model = nn.Sequential(nn.Identity(), nn.Linear(50, 20))
    weights = probes.attach(model, "0", n=200, init=init)._by_layer()["0"].static
    expected = 1 / 50 if init == "normal" else 1 / 50 / 3  # uniform in +-1/sqrt(width)
    assert float(weights.var()) == pytest.approx(expected, rel=0.02)


def test_branches_depend_on_seed_and_layer_name_only():
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    alone = probes.attach(model, "1", n=3)._by_layer()["1"].static
    torch.manual_seed(123)
    among = probes.attach(model, ["0", "1"], n=5)._by_layer()
    assert torch.equal(among["1"].static[:2], alone)
    assert not torch.equal(among["0"].static[0], among["1"].static[0])
    assert not torch.equal(probes.attach(model, "1", n=3, seed=1)._by_layer()["1"].static, alone)


def test_exact_and_compressed_share_their_branches():
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3))
    exact, compressed = (
        torch.cat(list(probes.attach(model, "0", n=40, method=m)._by_layer()["0"].chunks()))
        for m in ("exact", "compressed")
    )
    assert torch.equal(exact, compressed)


@pytest.mark.parametrize("name", ["keys", "values", "items", "a[1]", "a/b"])
def test_layers_may_have_any_name(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(4, 3))
    probe = probes.attach(model, name, n=2)
    model(torch.randn(2, 4))
    assert probe.layers == [name]
    assert torch.isfinite(probe.loss(torch.tensor([0, 1])))


def test_names_go_before_patterns_in_alpha():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    probe = probes.attach(model, "*", n=2, alpha={"0": 0.1, "*": 1.0})
    model(torch.randn(2, 4))
    probe.loss(torch.tensor([0, 1]))
    assert probe.measure(torch.tensor([0, 1]))["alpha"].values.tolist() == [0.1, 1.0]


def test_a_callable_init_may_use_the_global_generator_without_moving_it():
    model = nn.Sequential(nn.Linear(4, 3))
    before = torch.get_rng_state()
    probes.attach(model, "0", n=2, init=lambda weight, _: nn.init.normal_(weight))
    assert torch.equal(torch.get_rng_state(), before)


def test_whatever_the_default_device():
    model = nn.Sequential(nn.Linear(4, 3))
    expected = probes.attach(model, "0", n=2)._by_layer()["0"].static
    with torch.device("meta"):
        found = probes.attach(model, "0", n=2)._by_layer()["0"].static
    assert torch.equal(found, expected)


def test_first_tensor_of_a_tuple_is_the_feature():
    class Pair(nn.Module):
        def forward(self, x):
            return x * 2, "text"

    class Tuples(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair, self.head = Pair(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.pair(x)[0])

    model, x = Tuples(), torch.randn(5, 4)
    probe = probes.attach(model, "pair", n=1, sample=x)
    model(x.requires_grad_())
    assert torch.equal(probe._capture.features["pair"][0], x * 2)
