"""`attention.capturing` around all sorts of bodies."""

import contextlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import attention
from tests.helpers.small_vit import small_vit
from tests.helpers.state import snapshot


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(8, 2, batch_first=True)
        self.second = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        for layer in (self.first, self.second, self.first):
            x = x + layer(x, x, x)[0]
        return x


def test_a_layer_called_again_gets_a_number_and_another_model_is_ignored():
    model, teacher, x = Encoder(), Encoder(), torch.randn(2, 5, 8)
    with attention.capturing(model, queries="mean") as recording:
        teacher(x)
        model(x)
    seen = recording.dataset()
    assert seen["layer"].values.tolist() == ["first", "second", "first#2"]


def test_forward_passes_follow_one_another_along_sample():
    model, x = small_vit(), torch.randn(5, 3, 32, 32)
    whole = attention.capture(model, x)
    with torch.no_grad(), attention.capturing(model) as recording:
        for part in x.split(2):
            model(part)
    pieces = recording.dataset()
    assert pieces.sizes["sample"] == 5
    np.testing.assert_allclose(pieces["entropy"], whole["entropy"], atol=1e-5)


@pytest.mark.parametrize("way", ["forward", "forward_features", "blocks"])
def test_a_model_may_be_called_by_its_parts(way):
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    whole = attention.capture(model, x)
    with torch.no_grad(), attention.capturing(model) as recording:
        if way == "blocks":
            tokens = model._pos_embed(model.patch_embed(x))
            for block in model.blocks:
                tokens = block(tokens)
        else:
            getattr(model, way)(x)
    got = recording.dataset()
    xr.testing.assert_identical(got, whole[list(got.data_vars)])


def test_a_function_of_the_model_is_not_taken_for_its_call():
    def step(model, everything):
        return model(everything[:2])

    model, x = small_vit(), torch.randn(6, 3, 32, 32)
    with attention.capturing(model) as recording:
        step(model, x)
    assert recording.dataset().sizes["sample"] == 2


class Stepping(Encoder):
    """Calls itself from a method of its own, as Lightning modules do."""

    def training_step(self, batch):
        return [self(part) for part in batch.split(2)]


def test_every_call_from_a_method_of_the_model_is_a_pass():
    model, batch = Stepping(), torch.randn(4, 5, 8)
    with attention.capturing(model, queries="mean") as recording:
        model.training_step(batch)
    seen = recording.dataset()
    assert seen.sizes["sample"] == 4
    np.testing.assert_allclose(
        seen["entropy"], attention.capture(model, batch, queries="mean")["entropy"], atol=1e-5
    )


def test_layers_are_picked_by_name_of_any_ancestor():
    model, x = small_vit(depth=4), torch.randn(1, 3, 32, 32)
    seen = attention.capture(model, x, layers=["blocks.[1-2]"])
    assert seen["layer"].values.tolist() == ["blocks.1.attn", "blocks.2.attn"]


def test_steps_are_concatenated():
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    pieces = [attention.capture(model, x, maps=True) for _ in range(2)]
    steps = xr.Variable("step", [0, 10], {"long_name": "optimizer updates"})
    trace = xr.concat(pieces, dim=steps, combine_attrs="drop_conflicts")
    assert trace["entropy"].dims == ("step", "sample", "layer", "head")
    again = attention.statistics(trace)
    np.testing.assert_allclose(again["gini"], trace["gini"], atol=1e-6)


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(failure):
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    before = snapshot(model)

    def interrupted():
        with attention.capturing(model):
            model(x)
            raise failure

    with pytest.raises(failure):
        interrupted()
    assert snapshot(model) == before
    assert not _get_current_function_mode_stack()


def test_a_recording_is_read_after_the_body():
    model = small_vit()
    with attention.capturing(model) as recording:
        model(torch.randn(1, 3, 32, 32))
        with pytest.raises(ValueError, match="leave the body of `capturing` first"):
            recording.dataset()
    assert recording.dataset().sizes["sample"] == 1


class Blind(nn.Module):
    """Its last query may look nowhere."""

    def forward(self, x):
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[-1] = False
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_a_row_that_sees_nothing_has_no_statistics():
    seen = attention.capture(Blind(), torch.randn(2, 3, 5, 4), queries="all", maps=True)
    for name in ("entropy", "gini", "peak", "coverage", "mass_coverage", "participation", "weight"):
        assert seen[name].isel(query=4).isnull().all(), name
        assert seen[name].isel(query=3).notnull().all(), name


def test_inference_mode_is_no_obstacle():
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        inside = attention.capture(model, x)
    assert inside.identical(attention.capture(model, x))


def test_prefix_can_be_said():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    seen = attention.capture(model, torch.randn(2, 5, 8), prefix=1, maps=True)
    assert seen["n_prefix"].values.tolist() == [1]
    assert seen.sizes["key"] == 4


def test_passes_that_differ_are_refused():
    model = nn.ModuleDict({"a": Encoder(), "b": Encoder()})
    x = torch.randn(1, 3, 8)
    with attention.capturing(model, queries="mean") as recording:
        for name in ("a", "b", "a"):
            model[name](x)
    with pytest.raises(ValueError, match="the forward passes differ in their attention layers"):
        recording.dataset()


def test_what_is_done_to_one_result_does_not_show_in_the_next():
    """They share the labels of their axes."""
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    first = attention.capture(model, x, queries=[0, 3])
    untouched = first.copy(deep=True)
    for coordinate in first.coords.values():
        # Refused, or done to a copy, as where pandas keeps strings in pyarrow's form.
        with contextlib.suppress(ValueError):
            coordinate.values[0] = coordinate.values[-1]
        coordinate.attrs["long_name"] = "something else"
        coordinate.encoding["zlib"] = True
    first["entropy"][:] = 0
    again = attention.capture(model, x, queries=[0, 3])
    xr.testing.assert_identical(again, untouched)
    assert not any(coordinate.encoding for coordinate in again.coords.values())
    other = attention.capture(model, x, queries=[0, 4])
    assert other["query"].values.tolist() == [0, 4]


def test_results_say_of_how_many_samples_they_are():
    model, x = small_vit(), torch.randn(5, 3, 32, 32)
    assert attention.capture(model, x).attrs["n_samples"] == 5
    with torch.no_grad(), attention.capturing(model) as recording:
        for part in x.split(2):
            model(part)
    assert recording.dataset().attrs["n_samples"] == 5


def test_a_recording_says_what_it_is():
    model = small_vit()
    with attention.capturing(model, queries=[0, 2]) as recording:
        assert "n_passes=0, n_layers=0, not complete)" in repr(recording)
        model(torch.randn(1, 3, 32, 32))
    assert repr(recording) == (
        "Recording(VisionTransformer, queries=[0, 2], keys='patches', n_passes=1, n_layers=2, "
        "complete)"
    )


class Answering(nn.Module):
    """Returns more than its logits, as models with a loss of their own do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return {"loss": x.mean(), "logits": self.inner(x, x, x)[0].mean(1)}


def test_the_prediction_is_the_logits_wherever_they_are_in_the_output():
    model, x = Answering(), torch.randn(3, 5, 8)
    result = attention.capture(model, x, queries="mean")
    with torch.no_grad():
        np.testing.assert_allclose(result["prediction"], model(x)["logits"], atol=1e-6)
