"""The critical step against closed forms on quadratics, and a brute-force search on networks."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
import probes
from landscape._evaluation.critical_step import find_critical_step
from tests.helpers.dense_curvature import make


def quadratic(matrix, centre):
    """`(w - c)' A (w - c) / 2` of the weights of a linear layer, whatever the data."""

    def loss(model, x, y):
        offset = model.weight.flatten() - centre
        return offset @ matrix @ offset / 2

    return loss


def random_quadratic(seed, n=6):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return root @ root.T, torch.randn(n, generator=generator, dtype=torch.float64)


@pytest.fixture
def line_model():
    return nn.Linear(6, 1, bias=False).double(), (torch.ones(1, 6).double(), torch.ones(1, 1))


@pytest.mark.parametrize("seed", range(5))
def test_on_a_quadratic_it_is_the_curvature_along_the_gradient(line_model, seed):
    model, data = line_model
    matrix, centre = random_quadratic(seed)

    measured = landscape.critical_sharpness(
        model, data, loss=quadratic(matrix, centre), tolerance=1e-3
    )

    g = (matrix @ (model.weight.flatten() - centre)).detach().numpy()
    expected = g @ matrix.numpy() @ g / (g @ g)
    np.testing.assert_allclose(measured["critical_sharpness"].item(), expected, rtol=1e-6)
    np.testing.assert_allclose(measured["slope"].item(), -g @ g, rtol=1e-10)
    assert measured["n_evaluations"].item() < 10
    assert measured["lower_step"].item() < 2 / expected < measured["upper_step"].item()
    assert expected <= np.linalg.eigvalsh(matrix.numpy())[-1]


def test_along_the_top_eigenvector_it_is_the_largest_eigenvalue(line_model):
    model, data = line_model
    matrix, centre = random_quadratic(0)
    values, vectors = torch.linalg.eigh(matrix)
    with torch.no_grad():
        model.weight.copy_((centre + 0.3 * vectors[:, -1]).reshape(1, -1))

    loss = quadratic(matrix, centre)
    critical = landscape.critical_sharpness(model, data, loss=loss, tolerance=1e-3)
    largest = landscape.curvature(model, data, loss=loss, k=1, tolerance=1e-10)

    np.testing.assert_allclose(critical["critical_sharpness"].item(), values[-1], rtol=1e-6)
    np.testing.assert_allclose(
        critical["critical_sharpness"].item(), largest["largest"].item(), rtol=1e-6
    )


def test_relative_sharpness_of_two_quadratics_in_closed_form(line_model):
    model, data = line_model
    quadratics = {"main": random_quadratic(1), "auxiliary": random_quadratic(2)}
    losses = {name: quadratic(*pair) for name, pair in quadratics.items()}

    measured = landscape.critical_sharpness(model, data, losses=losses, tolerance=1e-3)

    w = model.weight.detach().flatten().numpy()
    for objective, (a, c) in quadratics.items():
        update = -(a.numpy() @ (w - c.numpy()))
        for other, (a2, c2) in quadratics.items():
            slope = update @ a2.numpy() @ (w - c2.numpy())
            here = measured.sel(objective=objective, other_objective=other)
            np.testing.assert_allclose(here["slope"].item(), slope, rtol=1e-10)
            if slope >= 0:
                assert here["critical_step"].item() == 0
                assert np.isinf(here["critical_sharpness"].item())
            else:
                expected = -2 * slope / (update @ a2.numpy() @ update)
                np.testing.assert_allclose(here["critical_step"].item(), expected, rtol=1e-6)


def test_losses_that_pull_apart_have_no_step(line_model):
    model, data = line_model
    matrix, centre = random_quadratic(3)
    losses = {
        "up": quadratic(matrix, centre),
        "down": lambda model, x, y: -quadratic(matrix, centre)(model, x, y),
    }
    measured = landscape.critical_sharpness(model, data, losses=losses)
    apart = measured.sel(objective="up", other_objective="down")
    assert apart["critical_step"].item() == 0
    assert np.isposinf(apart["critical_sharpness"].item())


@pytest.mark.parametrize("given", [False, True])
def test_on_a_network_it_is_where_a_fine_search_finds_it(given):
    model, (x, y) = make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    update = {name: -g for (name, _), g in zip(model.named_parameters(), slopes, strict=True)}
    if given:  # another direction than the gradient: its signs
        update = {name: u.sign() for name, u in update.items()}

    settings = {"direction": update} if given else {}
    measured = landscape.critical_sharpness(
        model, (x, y), samples=20, tolerance=1e-3, max_evaluations=30, **settings
    )

    def loss_at(step):
        moved = {name: before[name] + step * update[name] for name in before}
        return F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y).item()

    # Brute force: the first of many equal steps at which the loss is no lower.
    steps = np.linspace(0, 2 * measured["critical_step"].item(), 20_001)[1:]
    rises = next(step for step in steps if loss_at(step) >= loss_at(0))
    np.testing.assert_allclose(measured["critical_step"].item(), rises, rtol=1e-3)
    np.testing.assert_allclose(measured["critical_sharpness"].item(), 2 / rises, rtol=1e-3)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_main_and_auxiliary_loss_of_a_probe():
    model, (x, y) = make()
    with probes.attach(model, "0", n=3, sample=x) as probe:

        def auxiliary(model, x, y):
            with probe.listening():
                model(x)
                return probe.loss(y)

        measured = landscape.critical_sharpness(
            model,
            (x, y),
            losses={"main": nn.CrossEntropyLoss(), "auxiliary": auxiliary},
            samples=20,
        )
    own = measured.sel(objective="auxiliary", other_objective="auxiliary")
    assert own["critical_sharpness"].item() > 0
    assert (measured["n_evaluations"] < 10).all()


def test_a_loss_that_only_falls_has_no_critical_step():
    model = nn.Linear(2, 1, bias=False).double()
    falling = lambda model, x, y: model.weight.sum()  # noqa: E731
    x = torch.ones(1, 2).double()
    measured = landscape.critical_sharpness(model, (x, x), loss=falling)
    assert np.isnan(measured["critical_sharpness"].item())
    assert np.isposinf(measured["upper_step"].item())
    assert measured["lower_step"].item() > 0


def test_at_a_minimum_nothing_is_made_up():
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    x = torch.ones(4, 2).double()
    measured = landscape.critical_sharpness(
        model, (x, torch.zeros(4, 1).double()), loss=nn.functional.mse_loss
    )
    assert np.isnan(measured["critical_sharpness"].item())


@pytest.mark.parametrize("power", [1.2, 1.5, 3.0, 6.0])
def test_steps_of_losses_that_are_no_quadratics(power):
    bracket = find_critical_step(
        lambda t: -t + t**power, slope=-1.0, first_step=30.0, tolerance=0.01, max_evaluations=40
    )
    np.testing.assert_allclose(bracket.step, 1, rtol=0.01)
    assert bracket.lower < 1 <= bracket.upper <= 1.0101 * bracket.lower


@pytest.mark.parametrize("first_step", [0.3, 30.0, 1000.0])
@pytest.mark.parametrize("power", [2.0, 3.0])
def test_a_first_guess_that_is_far_off_costs_few_steps(power, first_step):
    bracket = find_critical_step(
        lambda t: -t + t**power,
        slope=-1.0,
        first_step=first_step,
        tolerance=0.05,
        max_evaluations=8,
    )
    assert bracket.lower < 1 <= bracket.upper <= 1.0501 * bracket.lower
    np.testing.assert_allclose(bracket.step, 1, rtol=1e-3)


@pytest.mark.parametrize("root", [5.0, 30.0, 200.0])
@pytest.mark.parametrize("power", [1.5, 2.0, 4.0])
def test_a_loss_that_falls_to_its_floor_comes_back_far_beyond_the_first_guess(root, power):
    bracket = find_critical_step(
        lambda t: -np.tanh(t) + np.tanh(root) * (t / root) ** power,
        slope=-1.0,
        first_step=1.0,
        tolerance=0.05,
        max_evaluations=8,
    )
    assert bracket.lower < root <= bracket.upper
    np.testing.assert_allclose(bracket.step, root, rtol=0.1)


@pytest.mark.parametrize("beyond", [np.inf, np.nan])
def test_a_loss_that_overflows_ends_the_bracket(beyond):
    bracket = find_critical_step(
        lambda t: -t if t < 1 else beyond,
        slope=-1.0,
        first_step=0.3,
        tolerance=0.05,
        max_evaluations=12,
    )
    assert bracket.lower < 1 <= bracket.upper <= 1.0501 * bracket.lower
    np.testing.assert_allclose(bracket.step, 1, rtol=0.05)


def test_what_does_not_fit_is_refused():
    model, data = make()
    with pytest.raises(ValueError, match="`losses`: expected either"):
        landscape.critical_sharpness(model, data, loss=F.cross_entropy, losses={"a": None})
    with pytest.raises(ValueError, match="`losses`: expected at least one"):
        landscape.critical_sharpness(model, data, losses={})
    with pytest.raises(ValueError, match="`direction`: expected 'gradient'"):
        landscape.critical_sharpness(model, data, direction="down")
    with pytest.raises(TypeError, match="`direction`: expected 'gradient' or a mapping"):
        landscape.critical_sharpness(model, data, direction=3)
    with pytest.raises(ValueError, match="`direction`: nothing is called 'nothing'"):
        landscape.critical_sharpness(model, data, direction={"nothing": torch.ones(2)})
    with pytest.raises(ValueError, match=r"`direction` at '0.bias': expected \(6,\), got \(2,\)"):
        landscape.critical_sharpness(model, data, direction={"0.bias": torch.ones(2)})
    with pytest.raises(TypeError, match=r"`direction` at '0.bias': expected a tensor, got ndarray"):
        landscape.critical_sharpness(model, data, direction={"0.bias": np.ones(6)})
    with pytest.raises(ValueError, match="`max_evaluations`"):
        landscape.critical_sharpness(model, data, max_evaluations=1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_that_are_no_numbers_are_told(bad):
    model, x, y = nn.Linear(3, 2), torch.ones(8, 3), torch.arange(8) % 2
    x[3, 1] = bad
    with pytest.warns(UserWarning, match="`data` or weights may hold NaN or infinity"):
        measured = landscape.critical_sharpness(model, (x, y))
    assert np.isnan(measured["critical_sharpness"]).all()


@pytest.mark.parametrize("verb", [landscape.curvature, landscape.critical_sharpness])
def test_what_cannot_be_differentiated_is_told(verb):
    model, data = make()
    with pytest.raises(ValueError, match="`loss`: expected one that depends on the parameters"):
        verb(model, data, loss=lambda outputs, targets: outputs.detach().mean())
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inside torch\.no_grad"):
        verb(model, data)
    with torch.no_grad():
        verb(model, data)
