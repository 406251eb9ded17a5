"""The whole verb on a small model: what is there, and that the model is as it was."""

import numpy as np
import pytest
import torch
import xarray as xr

import attention
import gradients
import landscape
import nudging
import probes
import resonance
from tests.helpers.state import snapshot
from tests.resonance_toolkit.front.examine.models import (
    make_mixed,
    make_mlp,
    make_sequences,
    make_vectors,
)

FAST = {"n": 2, "steps": 4, "seeds": 2, "samples": 40, "budget": 3}


@pytest.fixture(scope="module")
def examined():
    """A tree, and whether the model was left as it was."""
    model = make_mixed()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)

    model.calls = 0
    before = snapshot(model)
    tree = resonance.examine(model, make_sequences(), **FAST)
    model.calls = 0
    return tree, snapshot(model) == before


def test_the_model_is_left_as_it_was(examined):
    assert examined[1]


def test_every_part_is_done(examined):
    tree, _ = examined
    assert dict(zip(tree["part"].values, tree["status"].values, strict=True)) == dict.fromkeys(
        ["model", "response", "gradients", "landscape", "curvature", "attention", "nudging"],
        "done",
    ), tree["reason"].values
    assert set(tree["landscape"].children) == {"smoothness", "dilution"}
    assert set(tree["attention"].children) == {"maps", "sinks"}
    assert set(tree["curvature"].children) == {"critical_sharpness"}


def test_it_survives_a_file(examined, tmp_path):
    tree, _ = examined
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "tree.nc", engine="h5netcdf") as again:
        xr.testing.assert_identical(again.load(), tree)


def test_every_variable_is_described(examined):
    tree, _ = examined
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        assert "made_by" in dataset.attrs, node.path
        for name, variable in dataset.variables.items():
            assert variable.attrs.get("long_name"), f"{node.path} {name}"
        for key, value in dataset.attrs.items():
            assert type(value) in (str, int, float), f"{node.path} {key}"


def test_the_calls_repeat_the_numbers(examined):
    tree, _ = examined
    names = {
        "model": make_mixed().eval(),
        "data": make_sequences(),
        "x": make_sequences()[0][:2],
        "main_loss": lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y),
        "attention": attention,
        "gradients": gradients,
        "landscape": landscape,
        "nudging": nudging,
        "probes": probes,
        "resonance": resonance,
        "torch": torch,
    }
    calls = dict(zip(tree["part"].values, tree["call"].values, strict=True))

    point = eval(calls["model"], names)
    np.testing.assert_allclose(tree["model/loss"], point["loss"], rtol=1e-6)
    np.testing.assert_allclose(tree["model/accuracy"], point["accuracy"], rtol=1e-12)

    again = eval(calls["response"], names)
    for name in ("loss", "accuracy", "cosine", "listening_accuracy"):
        np.testing.assert_array_equal(again[name], tree["response"][name])

    exec(calls["gradients"], names)
    np.testing.assert_allclose(names["result"]["cosine"], tree["gradients/cosine"], rtol=1e-5)

    surface_call, _, attach_call, dilution_call = calls["landscape"].split("\n")
    exec(surface_call, names)
    np.testing.assert_array_equal(names["surface"]["loss"], tree["landscape/loss"])
    exec(attach_call, names)
    diluted = eval(dilution_call, names)
    np.testing.assert_array_equal(diluted["std"], tree["landscape/dilution/std"])

    curvature_call, sharpness_call = calls["curvature"].split("\n")
    spectrum = eval(curvature_call, names)
    np.testing.assert_array_equal(spectrum["largest"], tree["curvature/largest"])
    sharpness = eval(sharpness_call, names)
    expected = tree["curvature/critical_sharpness/critical_step"]
    np.testing.assert_array_equal(sharpness["critical_step"], expected)

    capture_call, sinks_call = calls["attention"].split("\n")
    captured = eval(capture_call, names)
    np.testing.assert_array_equal(captured["entropy"], tree["attention/entropy"])
    np.testing.assert_array_equal(captured["weight"][:4], tree["attention/maps/weight"])
    sinks = eval(sinks_call, names)
    np.testing.assert_array_equal(sinks["sink_weight"], tree["attention/sinks/sink_weight"])

    attach_call, backprop_call, auxiliary_call, random_call = calls["nudging"].split("\n")
    exec(attach_call, names)
    changes = {
        "backprop": eval(backprop_call, names)["loss_change"],
        "random": eval(random_call, names)["loss_change"],
    }
    with names["probe"].listening():
        auxiliary = eval(auxiliary_call.partition(": ")[2], names)
    changes["auxiliary"] = auxiliary["loss_change"]
    for credit, change in changes.items():
        np.testing.assert_array_equal(tree["nudging/loss_change"].sel(credit=credit), change)


def test_a_source_is_read_as_the_same_samples():
    x, y = make_vectors()
    dataset = torch.utils.data.TensorDataset(x, y)
    settings = {"parts": ["model", "landscape", "curvature"], "budget": 1, "samples": 30}
    model = make_mlp()
    of_arrays = resonance.examine(model, (x, y), **settings)
    of_source = resonance.examine(model, dataset, **settings)
    np.testing.assert_allclose(of_source["landscape/loss"], of_arrays["landscape/loss"], rtol=1e-6)


def test_only_the_parts_asked_for_are_there():
    tree = resonance.examine(make_mlp(), make_vectors(), parts="curvature", budget=1)
    assert tree["part"].values.tolist() == ["curvature"]
    assert list(tree.children) == ["curvature"]
    assert tree.attrs["verdict"] == "undecided"
    assert "not asked for" in tree.attrs["verdict_sentence"]
