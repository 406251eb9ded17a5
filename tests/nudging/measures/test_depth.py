"""Drift and depth utility."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import nudging
import tests.helpers.nudging_models as nets


def test_drift_is_relative_to_the_initial_norm():
    before = nets.make(nets.ResMLP)
    after = nets.make(nets.ResMLP, seed=1)
    found = nudging.drift(before, after)
    for name, layer in before.named_modules():
        if isinstance(layer, nn.Linear):
            w, v = layer.weight.detach(), after.get_submodule(name).weight.detach()
            want = np.linalg.norm(v - w) / np.linalg.norm(w)
            np.testing.assert_allclose(found["drift"].sel(layer=name), want, rtol=1e-6)
        else:
            assert name not in found["layer"]  # norms have no matrices
    same = nudging.drift(
        before.state_dict(), {k: v.clone() for k, v in before.state_dict().items()}
    )
    assert (same["drift"] == 0).all()


def test_drift_from_zero_is_undefined():
    before = {"a.weight": torch.zeros(2, 2), "b.weight": torch.eye(2)}
    found = nudging.drift(before, {name: torch.eye(2) for name in before})
    assert np.isnan(found["drift"].values[0])
    assert found["drift"].values[1] == 0
    np.testing.assert_allclose(found["displacement"], [2**0.5, 0])


def test_a_model_is_compared_with_a_state_dict_of_its_own():
    class Tied(nn.Module):
        """With batch norm, whose statistics a state dict has, and a head that is the embedding."""

        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(5, 4), nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

    model = nets.make(Tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.embed.weight.mul_(1.5)
    for found in (nudging.drift(before, model), nudging.drift(model, before)):
        assert found["layer"].values.tolist() == ["embed"]
    np.testing.assert_allclose(nudging.drift(before, model)["drift"], [0.5], rtol=1e-6)
    del before["norm.weight"]
    with pytest.raises(ValueError, match=r"differ in \['norm.weight'\]"):
        nudging.drift(before, model)


def test_drift_over_chosen_parameters_counts_a_layer_as_one_vector():
    before = {"a.weight": torch.ones(1, 2), "a.bias": torch.ones(2), "b.weight": torch.ones(3, 3)}
    after = {"a.weight": torch.ones(1, 2), "a.bias": torch.zeros(2), "b.weight": torch.ones(3, 3)}
    found = nudging.drift(before, after, over="a.*")
    assert found["layer"].values.tolist() == ["a"]
    np.testing.assert_allclose(found["drift"], [(2 / 4) ** 0.5])


@pytest.mark.parametrize(
    ("after", "text"),
    [
        ({"a": torch.ones(2, 2)}, "same names as `before`, differ in"),
        ({"a.weight": torch.ones(3, 2)}, r"expected \(2, 2\), got \(3, 2\)"),
        ([1], "`after`: expected a model or a mapping"),
        ({"a.weight": 3}, "`after`: expected a model or a mapping"),
    ],
)
def test_states_that_do_not_fit_are_refused(after, text):
    with pytest.raises((ValueError, TypeError), match=text):
        nudging.drift({"a.weight": torch.ones(2, 2)}, after)
    with pytest.raises(ValueError, match="no parameter has two"):
        nudging.drift({"a": torch.ones(2)}, {"a": torch.ones(2)})


def train(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    x, y = nets.batch(40)
    for _ in range(3):
        rows = torch.randperm(40)[:20]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def evaluate(model):
    x, y = nets.batch(40)
    return (model(x).argmax(1) == y).float().mean().item()


def build():
    return nets.ResMLP()


def test_the_ladder_trains_the_last_blocks_only():
    seen = []

    def watching(model):
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        train(model)
        moved = [
            i
            for i, block in enumerate(model.blocks)
            if not torch.equal(block.first.weight, start[f"blocks.{i}.first.weight"])
        ]
        seen.append((moved, start, torch.equal(model.head.weight, start["head.weight"])))

    found = nudging.depth_utility(build, watching, evaluate, "blocks.*", ladder=[0, 1, 4])
    assert [moved for moved, *_ in seen] == [[], [3], [0, 1, 2, 3]]
    assert not any(head_stayed for *_, head_stayed in seen)
    for _, start, _ in seen[1:]:  # the same network to begin with
        assert all(torch.equal(start[k], v) for k, v in seen[0][1].items())
    assert found["trained"].values.tolist() == [0, 1, 4]
    assert found["utility"].values[0, 0] == 0
    np.testing.assert_allclose(
        found["utility"], found["accuracy"] - found["accuracy"].sel(trained=0)
    )


def test_seeds_are_repetitions_and_a_ladder_without_the_baseline_has_no_utility():
    state = torch.get_rng_state()
    found = nudging.depth_utility(build, train, evaluate, "blocks.*", ladder=[4], seeds=[0, 1])
    assert torch.equal(torch.get_rng_state(), state)
    assert found["utility"].isnull().all()
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = build()
        torch.manual_seed(seed)
        train(model)
        assert found["accuracy"].sel(seed=seed, trained=4) == evaluate(model)


def test_training_that_moves_frozen_blocks_is_refused():
    def careless(model):
        with torch.no_grad():
            model.blocks[0].first.bias.add_(1)

    with pytest.raises(ValueError, match="`train`: expected parameters without"):
        nudging.depth_utility(build, careless, evaluate, "blocks.*", ladder=[2])


def test_networks_can_be_trained_on_an_executor():
    here = nudging.depth_utility(build, lambda model: None, evaluate, "blocks.*", ladder=[0, 2])
    with ThreadPoolExecutor(1) as pool:
        there = nudging.depth_utility(
            build, lambda model: None, evaluate, "blocks.*", ladder=[0, 2], executor=pool
        )
    np.testing.assert_array_equal(here["accuracy"], there["accuracy"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ladder": [5]}, "from 0 to 4"),
        ({"ladder": []}, "from 0 to 4"),
        ({"ladder": [1, 1]}, "from 0 to 4"),
        ({"seeds": []}, "`seeds`"),
        ({"train": None}, "`train`: expected a callable"),
        ({"build": lambda: 3}, "`build`: expected a function that returns a module"),
        ({"blocks": "nothing"}, "`blocks`: nothing is called"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, text):
    given = {"build": build, "train": train, "evaluate": evaluate, "blocks": "blocks.*"} | options
    with pytest.raises((ValueError, TypeError), match=text):
        nudging.depth_utility(**given)
