"""What a layer is, what it is called, and how layers are joined."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import gradients
from gradients import Trace, compare, regroup
from tests.helpers.small_network import gradients_of


class Tokens(nn.Module):
    """Two parameters of its own, as a vision transformer has, and eleven blocks of two parts."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(5))
        self.pos_embed = nn.Parameter(torch.randn(5))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5)) for _ in range(11)
        )
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        x = x * self.cls_token + self.pos_embed
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


def make_losses():
    torch.manual_seed(0)
    model = Tokens().double()
    outputs = model(torch.randn(6, 5).double())
    return model, (outputs.square().mean(), outputs.sin().mean())


def cosine_below(model, losses, *prefixes):
    """By autograd alone, over the parameters whose names begin so."""
    columns = []
    for loss in losses:
        by_name = gradients_of(loss, model)
        chosen = [g for name, g in by_name.items() if name.startswith(prefixes)]
        columns.append(torch.cat([gradient.flatten() for gradient in chosen]))
    return torch.cosine_similarity(*columns, dim=0).item()


def test_layers_are_named_as_their_modules_are():
    model, losses = make_losses()
    result = compare(model, losses)
    names = dict(model.named_modules())
    layers = result["layer"].values.tolist()
    assert layers == [n for n, m in names.items() if any(True for _ in m.parameters(recurse=False))]

    # What the model itself owns is one layer, under the root's own name.
    assert layers[0] == ""
    assert result["n_parameters"].sel(layer="").item() == 10
    expected = cosine_below(model, losses, "cls_token", "pos_embed")
    np.testing.assert_allclose(result["cosine"].sel(layer=""), expected, rtol=1e-11)


def test_names_of_layers_are_text_to_numpy(tmp_path):
    model, losses = make_losses()
    three = {"a": losses[0], "b": losses[1], "c": losses[0] + losses[1]}
    trace = Trace(model, level="activation", layers="blocks.*")
    data = torch.randn(6, 5).double(), torch.randn(6, 2).double()
    for result in (
        compare(model, losses),
        compare(model, three),
        trace.to_dataset(),
        regroup(compare(model, losses), "blocks.*"),
        gradients.initial_norm(model, data, loss=nn.functional.mse_loss),
    ):
        assert result["layer"].dtype.kind == "U"
    assert compare(model, three)["objective"].dtype.kind == "U"

    result = compare(model, losses)
    result.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as again:
        assert again["layer"].values.tolist() == result["layer"].values.tolist()


def test_a_pattern_makes_a_group_of_each_module_that_it_names():
    model, losses = make_losses()
    result = compare(model, losses)

    blocks = regroup(result, "blocks.*")
    assert blocks["layer"].values.tolist() == [f"blocks.{i}" for i in range(11)]
    for i in range(11):  # "blocks.1" does not take in "blocks.10"
        expected = cosine_below(model, losses, f"blocks.{i}.")
        np.testing.assert_allclose(blocks["cosine"].sel(layer=f"blocks.{i}"), expected, rtol=1e-11)
    assert blocks["n_parameters"].values.tolist() == [40] * 11

    several = regroup(result, ["head", "blocks.0", "blocks.[0-1].1"])
    assert several["layer"].values.tolist() == ["blocks.0", "blocks.0.1", "blocks.1.1", "head"]
    top = regroup(result, "*")  # one level: the root is on none
    assert top["layer"].values.tolist() == ["blocks", "head"]
    assert regroup(result, ["", "head"])["layer"].values.tolist() == ["", "head"]
    xr.testing.assert_equal(regroup(result, "")["dot"], result["dot"].sel(layer=[""]))
    everything = regroup(result, "**")["layer"].values.tolist()
    assert everything == [n for n, _ in model.named_modules()]


def test_a_mapping_makes_groups_under_names_of_ones_own():
    model, losses = make_losses()
    result = compare(model, losses)
    groups = {"tokens": "", "early": ["blocks.0", "blocks.1"], "all": "**"}
    grouped = regroup(result, groups)
    assert grouped["layer"].values.tolist() == ["tokens", "early", "all"]
    assert grouped["n_parameters"].values.tolist() == [10, 80, 10 + 440 + 12]
    early = cosine_below(model, losses, "blocks.0.", "blocks.1.")
    np.testing.assert_allclose(grouped["cosine"].sel(layer="early"), early, rtol=1e-11)
    np.testing.assert_allclose(grouped["cosine"].sel(layer="all"), result["cosine_total"])


def test_the_root_is_not_found_where_it_owns_nothing():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    outputs = model(torch.ones(1, 2))
    result = compare(model, [outputs.sum(), outputs.square().sum()])
    assert result["layer"].values.tolist() == ["0", "1"]
    with pytest.raises(ValueError, match="`groups`: nothing is called ''"):
        regroup(result, "")


def test_a_model_without_parts_is_one_layer():
    model = nn.Linear(2, 1)
    outputs = model(torch.ones(1, 2))
    result = compare(model, [outputs.sum(), outputs.square().sum()])
    assert result["layer"].values.tolist() == [""]
    assert regroup(result, "**")["layer"].values.tolist() == [""]
    grouped = regroup(result, {"all": "**"})
    np.testing.assert_array_equal(grouped["dot"].values, result["dot"].values)


def test_a_trace_says_what_it_is():
    model, losses = make_losses()
    trace = Trace(model, every=2)
    trace.backward(*losses)
    expected = "Trace(Tokens, every=2, level='parameter', step=1, n_recorded=1)"
    assert repr(trace) == expected
    assert repr(Trace(torch.nn.parallel.DataParallel(model))).startswith("Trace(Tokens, ")


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_callback_says_what_it_is(framework):
    module = pytest.importorskip(f"gradients.{framework}")
    trace = Trace(make_losses()[0])
    assert repr(module.TraceCallback(trace)) == f"TraceCallback({trace!r})"


def test_whole_numbers_of_numpy_are_whole():
    assert Trace(make_losses()[0], every=np.int64(3)).every == 3
