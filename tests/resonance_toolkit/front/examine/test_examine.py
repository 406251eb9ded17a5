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
    make_conv_net,
    make_images,
    make_mixed,
    make_mlp,
    make_sequences,
    make_tagger,
    make_texts,
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


CASES = {
    "tokens of sequences": (make_mixed, make_sequences),
    "images": (make_conv_net, make_images),
    "dict batches with a mask": (make_tagger, make_texts),
}


@pytest.mark.parametrize("case", CASES)
def test_the_calls_repeat_the_numbers(case, request):
    make_model, make_data = CASES[case]
    if case == "tokens of sequences":
        tree, _ = request.getfixturevalue("examined")
    else:
        tree = resonance.examine(make_model(), make_data(), **FAST)
    assert set(tree["status"].values) <= {"done", "not applicable"}, tree["reason"].values

    names = {
        "model": make_model().eval(),
        "data": make_data(),
        "attention": attention,
        "gradients": gradients,
        "landscape": landscape,
        "nudging": nudging,
        "probes": probes,
        "resonance": resonance,
        "torch": torch,
    }
    calls = dict(zip(tree["part"].values, tree["call"].values, strict=True))

    (point,) = run_lines(calls["model"], names)
    np.testing.assert_allclose(tree["model/loss"], point["loss"], rtol=1e-6)
    np.testing.assert_allclose(tree["model/accuracy"], point["accuracy"], rtol=1e-12)

    (again,) = run_lines(calls["response"], names)
    for name in ("loss", "accuracy", "cosine", "listening_accuracy"):
        np.testing.assert_array_equal(again[name], tree["response"][name])

    run_lines(calls["gradients"], names)
    np.testing.assert_allclose(names["result"]["cosine"], tree["gradients/cosine"], rtol=1e-5)

    run_lines(calls["landscape"], names)
    np.testing.assert_array_equal(names["surface"]["loss"], tree["landscape/loss"])
    smoothness = names["smoothness"]["mean_grad"]
    np.testing.assert_array_equal(smoothness, tree["landscape/smoothness/mean_grad"])
    np.testing.assert_array_equal(names["diluted"]["std"], tree["landscape/dilution/std"])

    spectrum, sharpness = run_lines(calls["curvature"], names)
    np.testing.assert_array_equal(spectrum["largest"], tree["curvature/largest"])
    expected = tree["curvature/critical_sharpness/critical_step"]
    np.testing.assert_array_equal(sharpness["critical_step"], expected)

    if case != "images":
        captured, sinks = run_lines(calls["attention"], names)
        np.testing.assert_array_equal(captured["entropy"], tree["attention/entropy"])
        np.testing.assert_array_equal(captured["weight"][:4], tree["attention/maps/weight"])
        np.testing.assert_array_equal(sinks["sink_weight"], tree["attention/sinks/sink_weight"])

    run_lines(calls["nudging"], names)
    for credit in ("backprop", "auxiliary", "random"):
        change = tree["nudging/loss_change"].sel(credit=credit)
        np.testing.assert_array_equal(change, names[f"by_{credit}"]["loss_change"])


def run_lines(text, names):
    """Run the lines of a call as a user would, and return what those without a name give."""
    values = []
    for line in text.split("\n"):
        is_statement = line.startswith("with ") or " = " in line.partition("(")[0]
        if is_statement:
            exec(line, names)
        else:
            values.append(eval(line, names))
    return values


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
