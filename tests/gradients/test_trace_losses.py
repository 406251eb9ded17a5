"""One loss, three losses, losses that reach little, and models with odd parameters."""

import copy
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from gradients import Trace
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses


def test_three_losses_give_the_whole_matrix():
    model, (x, y) = make_network(dropout=0.0), make_batch()

    def losses():
        main, auxiliary = two_losses(model, x, y)
        return main, auxiliary, model.stem(x).square().mean()  # reaches the stem alone

    trace = Trace(model, objectives=["task", "side", "decay"])
    trace.backward(*losses())
    found = trace.to_dataset().isel(step=0)

    single = [gradients_of(loss, model) for loss in losses()]
    for i, name in enumerate(["task", "side", "decay"]):
        for j, other in enumerate(["task", "side", "decay"]):
            at = found.sel(objective=name, other_objective=other)
            pairs = {
                p: (single[i][p], single[j][p])
                for p in single[i]
                if single[i][p] is not None and single[j][p] is not None
            }
            for layer in found["layer"].values:
                inside = [pairs[p] for p in pairs if p.rpartition(".")[0] == layer or p == layer]
                if not inside:
                    assert np.isnan(at["inner_product"].sel(layer=layer))
                    continue
                dot = sum((a * b).sum().item() for a, b in inside)
                norm = sum(a.square().sum().item() for a, _ in inside) ** 0.5
                np.testing.assert_allclose(at["inner_product"].sel(layer=layer), dot, rtol=1e-10)
                np.testing.assert_allclose(at["norm"].sel(layer=layer), norm, rtol=1e-10)
            a, b = (torch.cat([pair[k].flatten() for pair in pairs.values()]) for k in (0, 1))
            expected = (a @ b / a.norm() / b.norm()).item()
            np.testing.assert_allclose(at["cosine_total"], expected, rtol=1e-10)


def test_one_loss_records_norms():
    model, batch = make_network(dropout=0.0), make_batch()
    trace = Trace(model)
    trace.backward(two_losses(model, *batch)[0])
    found = trace.to_dataset()
    assert set(found.data_vars) == {"norm_main", "loss_main", "gradient_norm"}
    norm = model.stem[0].weight.grad.square().sum() + model.stem[0].bias.grad.square().sum()
    np.testing.assert_allclose(found["norm_main"].sel(layer="stem.0"), [norm.sqrt().item()])


def test_a_framework_may_call_backward_itself():
    results = []
    for joined in (False, True):
        model = make_network()
        trace = Trace(model)
        torch.manual_seed(3)
        for index in range(4):
            losses = two_losses(model, *make_batch(seed=index))
            if joined:
                (trace.join(*losses) / 2).backward()  # as accelerate and Lightning divide
            else:
                trace.backward(*(loss / 2 for loss in losses), update=index % 2 == 1)
            if joined and index % 2:
                trace.advance()
        results.append(trace.to_dataset())
    xr.testing.assert_allclose(*results, rtol=1e-12)
    assert list(results[0]["step"]) == [0, 1]


def test_frozen_shared_and_sparse_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3, sparse=True)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)
            self.unembed = nn.Linear(3, 5, bias=False)
            self.again = nn.Linear(3, 5, bias=False)
            self.again.weight = self.unembed.weight

        def forward(self, tokens):
            hidden = self.frozen(self.embed(tokens))
            return self.unembed(hidden), self.again(hidden.tanh())

    torch.manual_seed(0)
    model, tokens = Tied().double(), torch.tensor([[0, 1, 1], [2, 4, 0]])

    def losses():
        one, two = model(tokens)
        return one.square().mean(), two.sin().mean()

    single = [gradients_of(loss, model_without_frozen(model)) for loss in losses()]
    trace = Trace(model)
    trace.backward(*losses())
    found = trace.to_dataset().isel(step=0)
    for layer, name in (("embed", "embed.weight"), ("unembed", "unembed.weight")):
        a, b = (g[name].to_dense() if g[name].is_sparse else g[name] for g in single)
        np.testing.assert_allclose(found["dot"].sel(layer=layer), (a * b).sum().item(), rtol=1e-11)
    assert np.isnan(found["dot"].sel(layer="frozen"))
    assert "again" not in found["layer"]


def model_without_frozen(model):
    class Named:
        def named_parameters(self):
            return [(n, p) for n, p in model.named_parameters() if p.requires_grad]

    return Named()


def test_a_loss_without_a_graph_is_unreached():
    model, batch = make_network(), make_batch()
    trace = Trace(model)
    trace.backward(two_losses(model, *batch)[0], torch.zeros(()).double())
    found = trace.to_dataset()
    assert np.isnan(found["cosine_total"]).all()
    assert np.isfinite(found["gradient_norm"]).all()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 0}, "`every`: expected a whole number of at least 1, got 0"),
        ({"level": "neuron"}, "`level`: expected one of parameter, activation, got 'neuron'"),
        ({"level": "activation"}, "`layers`: expected names of layers with level='activation'"),
        ({"layers": ["stem"]}, "`layers`: expected None"),
        ({"objectives": ["a", "a"]}, "`objectives`: expected different names"),
        ({"objectives": [1, 2]}, "`objectives`: expected different names"),
        ({"scaler": 1024.0}, "`scaler`: expected a GradScaler or None, got float"),
        ({"group": 3}, "`group`: expected 'auto', None or a ProcessGroup, got 3"),
        ({"model": len}, "`model`: expected an nn.Module, got builtin_function_or_method"),
        ({"model": nn.ReLU()}, "`model`: expected a module with parameters, got ReLU"),
    ],
)
def test_bad_settings_are_named(settings, text):
    with pytest.raises((TypeError, ValueError), match=text):
        Trace(**{"model": make_network()} | settings)


def test_bad_losses_are_named():
    model = make_network()
    trace = Trace(model)
    main, auxiliary = two_losses(model, *make_batch())
    with pytest.raises(ValueError, match="losses: expected at least one, got 0"):
        trace.backward()
    with pytest.raises(ValueError, match=r"'auxiliary': expected a scalar tensor, got \(2,\)"):
        trace.backward(main, torch.zeros(2))
    trace.backward(main, auxiliary)
    with pytest.raises(ValueError, match=r"expected 2 \(main, auxiliary\), got 1"):
        trace.backward(main)


def test_a_model_under_trace_can_be_copied_and_pickled():
    model = make_network()
    with Trace(model, level="activation", layers="stem"):
        copy.deepcopy(model)(make_batch()[0])
        pickle.loads(pickle.dumps(model))(make_batch()[0])
