"""What arguments may look like: both spellings, numpy's numbers, outputs of several kinds."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import landscape
from tests.helpers.surfaces import make_data, make_mlp

BRANCH = {"branch": torch.ones(16, 16).double()}
VERBS = {
    "grid": lambda **settings: landscape.grid(make_mlp(), make_data(), size=3, **settings),
    "line": lambda **settings: landscape.line(make_mlp(), make_data(), size=3, **settings),
    "curvature_map": lambda **settings: landscape.curvature_map(
        make_mlp(), make_data(), size=2, max_products=3, **settings
    ),
    "dilution": lambda **settings: landscape.dilution(
        make_mlp(), make_data(), BRANCH, size=3, **settings
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_normalization_is_another_spelling(verb):
    british = VERBS[verb](normalisation="layer")
    xr.testing.assert_identical(VERBS[verb](normalization="layer"), british)
    assert not VERBS[verb]().identical(british)
    with pytest.raises(ValueError, match=r"`normalization`: .* spelling .* 'unit' and 'lay"):
        VERBS[verb](normalisation="layer", normalization="unit")


def test_a_line_to_a_model_has_no_normalisation_by_either_name():
    for name in ("normalisation", "normalization"):
        with pytest.raises(ValueError, match="`to`: cannot be combined with"):
            landscape.line(make_mlp(), make_data(), to=make_mlp(seed=1), **{name: "unit"})


def test_numbers_may_be_of_numpy():
    settings = {"size": 3, "seed": 2, "span": 0.5, "batch_size": 7, "tolerance": 0.125}
    of_numpy = {
        "size": np.int64(3),
        "seed": np.int32(2),
        "span": np.float32(0.5),
        "batch_size": np.int16(7),
        "tolerance": np.float32(0.125),
    }
    model, data = make_mlp(), make_data()
    expected = landscape.grid(model, data, method="adaptive", **settings)
    surface = landscape.grid(model, data, method="adaptive", **of_numpy)
    xr.testing.assert_identical(surface, expected)


def test_a_result_says_loss_dtype_and_samples_as_every_package_does():
    surface = landscape.grid(make_mlp(), make_data(), samples=20, size=3)
    assert surface.attrs["loss"] == "cross_entropy"
    assert surface.attrs["dtype"] == "float64"
    assert surface.attrs["n_samples"] == 20
    measured = landscape.curvature(
        make_mlp(), make_data(), loss=nn.CrossEntropyLoss(), k=1, max_products=2, trace_probes=0
    )
    assert measured.attrs["loss"] == "CrossEntropyLoss"
    assert "loss_function" not in surface.attrs | measured.attrs


class Wrapped(nn.Module):
    """A model that returns its logits inside something."""

    def __init__(self, wrap):
        super().__init__()
        self.inner = make_mlp()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    ("wrap", "tells_classes"),
    [
        (lambda logits: {"loss": torch.zeros(()), "logits": logits}, True),
        (lambda logits: (logits, torch.zeros(())), False),  # which of them has the classes?
    ],
    ids=["a mapping", "a tuple"],
)
def test_the_default_loss_finds_the_logits_in_what_a_model_returns(wrap, tells_classes):
    model, (x, y) = Wrapped(wrap), make_data()
    surface = landscape.grid(model, (x, y), size=3)
    with torch.no_grad():
        logits = model.inner(x)
    centre = surface.sel(alpha=0, beta=0)
    expected = F.cross_entropy(logits, y).item()
    np.testing.assert_allclose(centre["loss"], expected, rtol=1e-12)
    accuracy = (logits.argmax(1) == y).double().mean().item() if tells_classes else np.nan
    np.testing.assert_allclose(centre["accuracy"], accuracy)
    measured = landscape.curvature(
        model, (x, y), matrix="gauss-newton", k=1, trace_probes=0, density_runs=0
    )
    plain = landscape.curvature(
        model.inner, (x, y), matrix="gauss-newton", k=1, trace_probes=0, density_runs=0
    )
    np.testing.assert_array_equal(measured["largest"], plain["largest"])


def test_dilution_measures_the_planes_of_grid_with_the_same_settings():
    model, data = make_mlp(), make_data()
    settings = {
        "directions": "gradient",
        "normalisation": "layer",
        "bn": "recompute",
        "method": "adaptive",
        "tolerance": 0.3,
        "batch_size": 7,
        "metrics": {"norm": lambda model: 0.0},
        "size": (17, 15),
        "over": "5.*",
    }
    diluted = landscape.dilution(model, data, BRANCH, loss=F.cross_entropy, **settings)
    for covers, extra in (("backbone + extra", BRANCH), ("backbone", None)):
        plane = landscape.grid(model, data, extra=extra, loss=F.cross_entropy, **settings)
        rough = landscape.smoothness(plane)
        for name in ("std", "range", "mean_grad", "mean_grad_per_step"):
            assert diluted[name].sel(covers=covers).item() == rough[name].item()
    assert diluted.attrs["method"] == "adaptive"
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        landscape.dilution(model, data, BRANCH, sizes=3)
