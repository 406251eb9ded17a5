"""What is refused before any work, and what is kept though it is not finite."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from tests.helpers.state import snapshot
from tests.landscape.evaluation.test_long_runs import make


def test_non_finite_values_are_kept_and_counted():
    model, data = make()
    before = snapshot(model)

    def breaking(model, x, y):
        where = model[0].weight[0, 0] - start
        if where > 1e-9:
            return torch.tensor(torch.nan)
        return torch.tensor(torch.inf) if where < -1e-9 else F.cross_entropy(model(x), y)

    start = model[0].weight[0, 0].item()
    one = {n: torch.ones_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    none = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    none["3.weight"][0, 0] = 1.0
    surface = landscape.grid(model, data, loss=breaking, directions=[one, none], samples=12, size=3)
    assert np.isinf(surface["loss"].sel(alpha=-1)).all()
    assert np.isfinite(surface["loss"].sel(alpha=0)).all()
    assert surface["loss"].sel(alpha=1).isnull().all()
    assert surface.attrs["n_non_finite"] == 6
    assert snapshot(model) == before


def test_a_graph_of_the_user_can_still_be_differentiated():
    model, (x, y) = make()
    loss = F.cross_entropy(model(x), y)
    landscape.grid(model, (x, y), samples=12, size=3)
    loss.backward()


class Nothing(nn.Module):
    def forward(self, x):
        return x


weight = {"0.weight": torch.ones(8, 40), "3.weight": torch.ones(3, 8)}


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"size": 1}, ValueError, "`size`: expected a whole number of at least 2"),
        ({"size": 3.0}, ValueError, "`size`"),
        ({"span": float("inf")}, ValueError, "`span`: expected a positive, finite number"),
        ({"span": float("nan")}, ValueError, "`span`"),
        ({"span": 0.0}, ValueError, "`span`"),
        ({"normalisation": "batch"}, ValueError, "`normalisation`: expected one of filter, layer"),
        ({"directions": "best"}, ValueError, "`directions`: expected one of random"),
        ({"directions": None}, TypeError, "`directions`: expected one or two.*NoneType"),
        ({"directions": {"0.weight": [1.0]}}, TypeError, "at '0.weight': expected a tensor"),
        ({"seed": 1.5}, ValueError, "`seed`: expected a whole number, got 1.5"),
        ({"seed": "a"}, ValueError, "`seed`: expected a whole number, got 'a'"),
        ({"tolerance": True}, ValueError, "`tolerance`: expected a positive, finite number"),
        ({"directions": []}, ValueError, "`directions`: expected one or two mappings"),
        ({"directions": {"0.weight": torch.ones(8, 40)}}, ValueError, "at '3.weight'.*nothing"),
        (
            {"directions": weight | {"0.weight": torch.ones(40, 8)}},
            ValueError,
            r"at '0.weight': expected \(8, 40\), got \(40, 8\)",
        ),
        ({"directions": weight | {"x": torch.ones(1)}}, ValueError, "at 'x'.*does not move"),
        (
            {"directions": weight | {"3.weight": torch.full((3, 8), torch.nan)}},
            ValueError,
            "expected finite numbers",
        ),
        (
            {"directions": {k: torch.zeros_like(v) for k, v in weight.items()}},
            ValueError,
            "nothing moves",
        ),
        ({"over": "blocks.*"}, ValueError, "`over`: nothing is called 'blocks.*'.*0.weight"),
        ({"bn": "thaw"}, ValueError, "`bn`: expected one of frozen, recompute"),
        ({"method": "guess"}, ValueError, "`method`: expected one of exact, adaptive"),
        ({"tolerance": 0}, ValueError, "`tolerance`: expected a positive, finite number"),
        ({"batch_size": 0}, ValueError, "`batch_size`"),
        ({"samples": 0}, ValueError, "`samples`"),
        ({"loss": 3}, TypeError, "`loss`: expected a callable"),
        ({"loss": lambda a, b, c, d: 0}, TypeError, "`loss`: .* 4 arguments"),
        ({"metrics": [len]}, TypeError, "`metrics`: expected a mapping"),
        ({"metrics": {"loss": F.cross_entropy}}, ValueError, "`metrics`: the names .* taken"),
        ({"extra": 3}, TypeError, "`extra`: expected a module or a mapping"),
        ({"model": 3}, TypeError, "`model`: expected an nn.Module"),
        ({"model": Nothing()}, ValueError, "`model`: expected parameters to move"),
        ({"model": nn.BatchNorm1d(40)}, ValueError, '`over`: nothing to move.*over="\\*\\*"'),
    ],
)
def test_bad_input_is_told_clearly_before_any_work(change, error, told):
    model, data = make()
    before = snapshot(model)
    torch.manual_seed(0)
    call = {"samples": 12, "size": 3} | change
    called = call.pop("model", model)
    with pytest.raises(error, match=told):
        landscape.grid(called, data, **call)
    assert snapshot(model)["values"] == before["values"]


def test_more_samples_than_there_are_says_so_and_uses_all():
    model, data = make()
    with pytest.warns(UserWarning, match="`samples`: up to 500 are drawn, data has 12: all used"):
        surface = landscape.grid(model, data, samples=500, size=3)
    assert surface.attrs["n_samples"] == 12
    assert surface.identical(landscape.grid(model, data, size=3))  # without a warning


@pytest.mark.parametrize("span", [3, "ab", (0.0, float("nan")), (1.0, 0.0), (0.0, 1.0, 2.0)])
def test_a_span_that_is_none_is_refused(span):
    with pytest.raises(ValueError, match="`span`: expected two finite numbers"):
        landscape.line(*make(), samples=12, size=3, span=span)


def test_checkpoints_that_are_not_finite_are_refused():
    model, data = make()
    broken = {name: t * torch.nan for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match="`checkpoints`: expected finite weights"):
        landscape.trajectory(model, [model, broken, model], data, samples=12, size=3)


@pytest.mark.parametrize("kind", ["random", "gradient", "hessian", "one"])
def test_one_number_has_no_second_direction(kind):
    model, data = make()
    model[3] = nn.Linear(8, 3).double()
    model.register_parameter("gain", nn.Parameter(torch.tensor(1.5).double()))
    given = {"gain": torch.tensor(1.0)} if kind == "one" else kind

    def scaled(model, x, y):
        return F.cross_entropy(model.gain * model(x), y)

    settings = {"loss": scaled, "over": "gain", "samples": 12, "size": 3}
    with pytest.raises(ValueError, match="`over`: expected at least two numbers to move, got one"):
        landscape.grid(model, data, directions=given, **settings)
    row = landscape.line(model, data, direction=given, normalisation="filter", **settings)
    x, y = data
    logits = model.eval()(x).detach()
    expected = [F.cross_entropy(gain * logits, y).item() for gain in (0.0, 1.5, 3.0)]
    np.testing.assert_allclose(sorted(row["loss"]), sorted(expected), rtol=1e-12)
    with pytest.raises(ValueError, match="expected two or more numbers to move, got one"):
        landscape.principal_directions(
            model, [{"gain": torch.tensor(0.1 * i)} for i in range(4)], over="gain"
        )
