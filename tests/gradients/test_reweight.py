"""What a weighting would have done, from the recorded Gramian alone."""

import numpy as np
import pytest
import scipy.optimize
import torch
import xarray as xr

from gradients import Trace, compare, regroup, reweight
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses

aggregation = pytest.importorskip("torchjd.aggregation")
linalg = pytest.importorskip("torchjd.linalg")


class LeastSquaresProjector(linalg.DualConeProjector):
    """TorchJD's projection onto the dual cone without quadprog: w >= 0 with |L' (u + w)| least."""

    def __call__(self, U, G):
        factor = np.linalg.cholesky(G.numpy() + 1e-12 * np.eye(len(G))).T
        rows = [u + scipy.optimize.nnls(factor, -factor @ u)[0] for u in np.atleast_2d(U)]
        return torch.tensor(np.stack(rows)).reshape(U.shape)


def upgrad():
    projector = LeastSquaresProjector()
    return aggregation.UPGrad(projector=projector), aggregation.UPGradWeighting(projector=projector)


AGGREGATORS = {
    "UPGrad": upgrad,
    "MGDA": lambda: (aggregation.MGDA(), aggregation.MGDAWeighting()),
    "PCGrad": lambda: (aggregation.PCGrad(), aggregation.PCGradWeighting()),
    "DualProj": lambda: (
        aggregation.DualProj(projector=LeastSquaresProjector()),
        aggregation.DualProjWeighting(projector=LeastSquaresProjector()),
    ),
    "Mean": lambda: (aggregation.Mean(), aggregation.MeanWeighting()),
}


def conflicting_losses(n_losses):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    outputs = model.double()(make_batch()[0])
    directions = torch.tensor([[3.0, 0.2, 0.0], [-1.0, 0.5, 0.3], [0.1, -2.0, 0.5]]).double()
    scores = outputs @ directions[:n_losses].T
    return model, list(scores.mean(0))


@pytest.mark.parametrize("n_losses", [2, 3])
@pytest.mark.parametrize("name", AGGREGATORS)
def test_it_equals_torchjd_on_the_gradients_themselves(name, n_losses):
    model, losses = conflicting_losses(n_losses)
    jacobian = torch.stack(
        [torch.cat([g.flatten() for g in gradients_of(loss, model).values()]) for loss in losses]
    )
    assert (jacobian @ jacobian.T).min() < 0  # there is something to mend

    aggregator, weighting = AGGREGATORS[name]()
    remedy = reweight(compare(model, losses), weighting, seed=5)

    torch.manual_seed(5)
    combined = aggregator(jacobian)
    weights = np.linalg.lstsq(jacobian.T.numpy(), combined.numpy(), rcond=None)[0]
    np.testing.assert_allclose(remedy["weight"], weights, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(remedy["combined_norm"], combined.norm(), rtol=1e-7)
    lengths = jacobian.norm(dim=1)
    cosines = jacobian @ combined / lengths / combined.norm()
    np.testing.assert_allclose(remedy["combined_cosine"], cosines, rtol=1e-5, atol=1e-6)

    total = jacobian.sum(0)
    np.testing.assert_allclose(remedy["sum_norm"], total.norm(), rtol=1e-9)
    np.testing.assert_allclose(
        remedy["sum_cosine"], jacobian @ total / lengths / total.norm(), rtol=1e-7, atol=1e-9
    )


def recorded(n_steps=3):
    model = make_network(dropout=0.0)
    trace = Trace(model)
    for step in range(n_steps):
        trace.backward(*two_losses(model, *make_batch(seed=step)))
    return trace.to_dataset()


def test_a_layer_is_weighted_by_its_own_gramian():
    trace = recorded()

    remedy = reweight(trace, aggregation.PCGradWeighting(), by="layer")

    assert remedy["weight"].dims == ("step", "layer", "objective")
    for layer in trace["layer"].values:
        alone = reweight(trace.sel(layer=[layer]), aggregation.PCGradWeighting())
        expected = remedy["combined_cosine"].sel(layer=layer)
        np.testing.assert_array_equal(alone["combined_cosine"], expected)
    assert remedy["weight"].sel(layer="head").isnull().all()  # the auxiliary loss is not there
    whole = reweight(regroup(trace, {"all": "**"}), "sum", by="layer").isel(layer=0)
    np.testing.assert_allclose(whole["sum_norm"], reweight(trace, "sum")["combined_norm"])


def test_an_overflow_is_nan_and_the_weighting_is_not_asked():
    trace = recorded()
    broken = trace.copy(deep=True)
    for name in ("dot", "norm_main", "norm_aux"):
        broken[name][1] = np.nan
    asked = []

    remedy = reweight(broken, lambda g: asked.append(g) or torch.ones(2))

    assert len(asked) == 2
    assert remedy["combined_norm"].isnull().values.tolist() == [False, True, False]


def test_gradients_that_cancel_have_no_direction():
    one = (("layer",), [1.0])
    trace = xr.Dataset(
        {"dot": (("layer",), [-1.0]), "norm_main": one, "norm_aux": one}, {"layer": ["a"]}
    )

    remedy = reweight(trace, "mean")

    assert remedy["combined_norm"].item() == 0
    assert remedy["combined_cosine"].isnull().all()


def test_random_numbers_of_a_weighting_are_seeded_and_leave_none_behind():
    trace = recorded()
    weighting = aggregation.RandomWeighting()
    state = torch.get_rng_state()

    first, again, other = (reweight(trace, weighting, seed=seed) for seed in (1, 1, 2))

    assert torch.equal(torch.get_rng_state(), state)
    xr.testing.assert_identical(first, again)
    assert not np.allclose(first["weight"], other["weight"])


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ("upgrad", "`weighting`: expected"),
        (None, "`weighting`: expected a callable"),
        (aggregation.MGDAWeighting, r"add \(\)"),
        (aggregation.MGDA(), "expected one that takes a Gramian"),
        (aggregation.SDMGradWeighting(), "expected one that takes a Gramian"),
        (lambda gramian: torch.ones(3), "expected 2 finite weights"),
        (lambda gramian: gramian[0] * torch.nan, "expected 2 finite weights"),
        (lambda gramian: "equal", "expected 2 finite weights"),
    ],
)
def test_what_is_no_weighting_is_refused(weighting, message):
    with pytest.raises((TypeError, ValueError), match=message):
        reweight(recorded(1), weighting)


def test_what_has_no_inner_products_is_refused():
    model = make_network()
    trace = Trace(model)
    trace.backward(two_losses(model, *make_batch())[0])

    with pytest.raises(ValueError, match="`trace`: expected the inner products of two losses"):
        reweight(trace.to_dataset(), "sum")
    with pytest.raises(ValueError, match="`trace`: expected a dimension `layer`"):
        reweight(xr.Dataset({"dot": 1.0}), "sum")
    with pytest.raises(TypeError, match="give its to_dataset"):
        reweight(trace, "sum")
    with pytest.raises(ValueError, match="`by`"):
        reweight(recorded(1), "sum", by="head")
