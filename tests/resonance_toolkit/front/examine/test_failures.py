"""What cannot be measured is in the tree, and on the page, with its reason; the rest is there."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import landscape
import resonance
from tests.helpers.state import snapshot
from tests.resonance_toolkit.front.examine.models import (
    make_conv_net,
    make_images,
    make_mixed,
    make_mlp,
    make_sequences,
    make_vectors,
)

FAST = {"n": 2, "steps": 3, "seeds": 2, "samples": 30, "budget": 3}


def examine(model, data, **settings):
    return resonance.examine(model, data, **FAST | settings)


def read_parts(tree):
    """Status and reason of each part."""
    rows = zip(tree["status"].values, tree["reason"].values, strict=True)
    return dict(zip(tree["part"].values.tolist(), rows, strict=True))


def read_page(tree, tmp_path):
    path = tmp_path / "page.html"
    resonance.page(tree, path)
    return path.read_text()


def test_a_model_that_does_not_run_gives_a_page_that_says_so(tmp_path):
    model = make_mixed()
    model.fail_at = 1
    tree = examine(model, make_sequences())
    for status, reason in read_parts(tree).values():
        assert status == "failed"
        assert "forward failed" in reason
    assert not tree.children
    assert "forward failed" in tree.attrs["verdict_sentence"]
    assert "forward failed" in read_page(tree, tmp_path)


def test_a_model_that_fails_half_way_keeps_what_was_measured_before(tmp_path):
    model = make_mixed()
    examine(model, make_sequences(), parts="model")
    n_calls = model.calls

    model = make_mixed()
    model.fail_at = n_calls + 1
    tree = examine(model, make_sequences(), parts=["model", "curvature"])
    parts = read_parts(tree)
    assert parts["model"][0] == "done"
    assert parts["curvature"][0] in ("failed", "refused")
    assert "forward failed" in parts["curvature"][1]
    assert list(tree.children) == ["model"]
    assert "forward failed" in read_page(tree, tmp_path)


def test_a_part_that_fails_stops_no_other(monkeypatch, tmp_path):
    def fail(*_args, **_settings):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(landscape, "grid", fail)
    tree = examine(make_mixed(), make_sequences())
    parts = read_parts(tree)
    assert parts.pop("landscape") == ("failed", "ZeroDivisionError: no such luck")
    assert {status for status, _ in parts.values()} == {"done"}
    assert "no such luck" in read_page(tree, tmp_path)


def test_a_child_that_fails_leaves_its_part(monkeypatch):
    def fail(*_args, **_settings):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(landscape, "dilution", fail)
    tree = examine(make_mlp(), make_vectors(), parts="landscape")
    assert read_parts(tree)["landscape"] == ("done", "dilution: ZeroDivisionError: no such luck")
    assert tree["landscape"].attrs["dilution_reason"] == "ZeroDivisionError: no such luck"
    assert set(tree["landscape"].children) == {"smoothness"}


def test_losses_that_are_nan_are_told_and_judged_by_nobody(tmp_path):
    model = make_mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    tree = examine(model, make_vectors())
    assert np.isnan(tree["model/loss"])
    assert np.isnan(tree["model/accuracy"])
    assert tree.attrs["verdict"] == "undecided"
    assert "not finite" in tree.attrs["verdict_sentence"]
    assert "2 of 2 plain runs" in tree.attrs["verdict_sentence"]
    assert "not finite" in read_page(tree, tmp_path)


def test_training_that_diverges_is_no_effect_of_branches():
    tree = examine(
        make_mlp(),
        make_vectors(),
        parts="response",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30),
    )
    assert read_parts(tree)["response"][0] == "done"
    assert tree.attrs["verdict"] == "undecided"
    assert "not finite" in tree.attrs["verdict_sentence"]


def test_one_class_only_is_undecided(tmp_path):
    x, _ = make_vectors()
    tree = examine(make_mlp(), (x, torch.zeros(len(x), dtype=torch.long)))
    assert tree.attrs["verdict"] == "undecided"
    assert "Only class 0 occurs" in tree.attrs["verdict_sentence"]
    for attributes in (tree.attrs, tree["model"].attrs):
        assert attributes["targets"].endswith("only class 0 occurs in them")
    assert "Only class 0 occurs" in read_page(tree, tmp_path)


def test_two_samples_only(tmp_path):
    x, y = make_vectors(2)
    tree = examine(make_mlp(), (x, y), samples=None)
    assert tree["response"].attrs["n_train"] == tree["response"].attrs["n_held_out"] == 1
    assert tree.attrs["verdict"] == "undecided"
    assert "One held-out sample" in tree.attrs["verdict_sentence"]
    assert "One held-out sample" in read_page(tree, tmp_path)


def test_one_sample_is_measured_and_not_trained_on(tmp_path):
    x, y = make_vectors(1)
    tree = examine(make_mlp(), (x, y), samples=None)
    status, reason = read_parts(tree)["response"]
    assert status == "refused"
    assert "at least two samples" in reason
    assert "model" in tree.children
    read_page(tree, tmp_path)


def test_a_model_without_attention_says_so():
    status, reason = read_parts(examine(make_mlp(), make_vectors(), parts="attention"))["attention"]
    assert (status, reason) == (
        "not applicable",
        "no attention was seen in a forward pass of this model",
    )


class NoGradient(nn.Module):
    """Runs, and gives outputs that nothing flows back from."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 3)

    @torch.no_grad()
    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise RuntimeError("no way back")


class NoWayBack(NoGradient):
    def forward(self, x):
        for block in self.blocks:
            x = FailingBackward.apply(block(x)).relu()
        return self.head(x)


@pytest.mark.parametrize("kind", [NoGradient, NoWayBack])
def test_a_model_without_backward_is_still_looked_at(kind, tmp_path):
    torch.manual_seed(0)
    tree = examine(kind(), make_vectors())
    parts = read_parts(tree)
    assert parts["model"][0] == parts["landscape"][0] == "done", parts
    for part in ("response", "gradients", "curvature"):
        status, reason = parts[part]
        assert status in ("failed", "refused")
        assert len(reason) > 10
    read_page(tree, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype, tmp_path):
    x, y = make_vectors()
    model = make_mlp().to(dtype)
    before = snapshot(model)
    tree = examine(model, (x.to(dtype), y))
    assert snapshot(model) == before
    parts = read_parts(tree)
    assert parts["model"][0] == parts["response"][0] == "done", parts
    assert all(reason for status, reason in parts.values() if status != "done")
    assert tree["model"].attrs["dtype"] == str(dtype).removeprefix("torch.")
    read_page(tree, tmp_path)


def test_all_frozen_is_refused_by_the_training_part_only():
    model = make_mlp().requires_grad_(False)
    parts = read_parts(examine(model, make_vectors()))
    assert "requires_grad" in parts["response"][1]
    assert parts["model"][0] == parts["landscape"][0] == "done"


def test_batch_norm_dropout_and_frozen_layers_in_train_mode_are_left_alone():
    model = make_conv_net().train()
    before = snapshot(model)
    tree = examine(model, make_images())
    assert snapshot(model) == before
    assert read_parts(tree)["response"][0] == "done"


def test_a_regression_is_trained_with_the_loss_that_is_given():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x, _ = make_vectors()
    tree = examine(model, (x, 5 * x[:, :1] + 3), loss=nn.functional.mse_loss, parts="response")
    assert read_parts(tree)["response"] == ("done", "")
    response = tree["response"]
    assert response.attrs["branch_loss"] == "mse_loss"
    assert "listening_loss" in response
    assert "held-out loss" in tree.attrs["verdict_sentence"]
    assert "loss=mse_loss" in tree["call"].item()


def test_copies_are_freed():
    copies = weakref.WeakSet()
    largest = 0

    class Counted(type(make_mlp())):
        def __deepcopy__(self, memo):
            nonlocal largest
            new = make_mlp()
            new.load_state_dict(self.state_dict())
            copies.add(new)
            largest = max(largest, len(copies))
            return new

    gc.disable()
    try:
        examine(Counted(*make_mlp()), make_vectors(), seeds=4, parts="response")
        # Freed by counting references alone, run by run: a cycle would keep all of them. One more
        # is that of a dry run, which would have no data if this class did not give it some.
        assert largest <= 3
        assert len(copies) <= 1
    finally:
        gc.enable()
    gc.collect()
    assert not copies
