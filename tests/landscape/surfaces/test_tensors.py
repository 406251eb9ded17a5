"""Directions scaled tensor by tensor, and the dilution that follows from counting tensors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import landscape
import probes
from landscape._directions.parameters import module_by_tensor_name, tensors_to_move
from landscape._directions.random_directions import draw_directions

N = 5  # branches at each of two layers
LAYERS = ["1", "3"]


def make():
    torch.manual_seed(0)
    layers = [nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)]
    model = nn.Sequential(*layers).double()
    return model, (torch.randn(30, 12).double(), torch.arange(30) % 3)


def attach(model, active=1, method="exact"):
    return probes.attach(
        model, LAYERS, n=N, active=active, method=method, sample=torch.zeros(2, 12).double()
    )


def separate_heads():
    """The same branches as modules of their own."""
    torch.manual_seed(1)
    return nn.ModuleList(
        nn.Linear(width, 3, bias=False) for width in (9, 7) for _ in range(N)
    ).double()


def test_every_tensor_is_equally_long_and_the_whole_is_one():
    model, _ = make()
    with attach(model) as probe:
        tensors = tensors_to_move(model, "**", probe)
        modules = module_by_tensor_name(model, probe)
        axes = draw_directions(tensors, modules, "tensor", seed=3, count=2)

    for axis in axes:
        pieces = []
        for name in tensors:
            # What a probe keeps is (branch, class, width): each branch is a tensor of its own.
            is_stack = name.startswith("extra.")
            pieces += list(axis[name]) if is_stack else [axis[name]]

        assert len(pieces) == 6 + 2 * N
        lengths = np.array([piece.norm().item() for piece in pieces])
        np.testing.assert_allclose(lengths, 1 / math.sqrt(6 + 2 * N), rtol=1e-12)


@pytest.mark.parametrize("active", [0, 1, 2, "all"])
def test_the_factor_is_that_of_branches_counted_one_by_one(active):
    model, data = make()
    settings = {"normalisation": "tensor", "samples": 30, "size": 7, "seed": 2}
    heads = separate_heads()
    n_model = len(list(model.parameters()))
    n_heads = len(list(heads.parameters()))
    factor = math.sqrt(n_model / (n_model + n_heads))

    separate = landscape.dilution(model, data, heads, **settings)
    with attach(model, active) as probe:
        assert probe.n_tensors == n_heads
        stacked = landscape.dilution(model, data, probe, **settings)

    for result in (separate, stacked):
        assert result["n_tensors"].values.tolist() == [n_model + n_heads, n_model]
        np.testing.assert_allclose(result["factor_by_tensor"], factor, rtol=1e-14)

        # Unlike the share of a Gaussian vector, which fluctuates, this one is exact.
        np.testing.assert_allclose(result["backbone_length"], [factor, 1], rtol=1e-12)

    # Other branches were drawn, and the second axis is made orthogonal to the first on all of them.
    np.testing.assert_allclose(stacked["change"], separate["change"], rtol=0.05)


def test_a_plane_over_stacked_branches_is_the_plane_over_separate_ones():
    model, data = make()
    heads = separate_heads()
    backbone = [
        {name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(2)
    ]
    branches = [
        [torch.randn_like(head.weight) * 1.5**i for i, head in enumerate(heads)] for _ in range(2)
    ]
    settings = {"normalisation": "tensor", "over": "**", "samples": 30, "size": 5}

    separate_axes = [
        axis | {f"extra.{i}.weight": weight for i, weight in enumerate(weights)}
        for axis, weights in zip(backbone, branches, strict=True)
    ]
    separate = landscape.grid(model, data, directions=separate_axes, extra=heads, **settings)

    with attach(model) as probe:
        moving = tensors_to_move(model, "**", probe)
        stacked_axes = []
        for axis, weights in zip(backbone, branches, strict=True):
            stack_of_width = {9: torch.stack(weights[:N]), 7: torch.stack(weights[N:])}
            stacks = {}
            for name, tensor in moving.items():
                if name.startswith("extra."):
                    stack = stack_of_width[tensor.shape[-1]]
                    stacks[name] = stack[: N - 1] if "static" in name else stack[N - 1 :]

            assert len(stacks) == 4
            stacked_axes.append(axis | stacks)
        stacked = landscape.grid(model, data, directions=stacked_axes, extra=probe, **settings)

    np.testing.assert_allclose(stacked["loss"], separate["loss"], rtol=1e-13)
    for name in ("length_alpha", "length_on_model", "cosine_of_axes"):
        np.testing.assert_allclose(stacked.attrs[name], separate.attrs[name], rtol=1e-12)


def test_tensors_move_alike_whatever_their_size_and_their_weights():
    # A quadratic loss with its minimum here: the loss is the squared length that it weighs.
    model = nn.Linear(50, 1).double()
    nn.init.zeros_(model.bias)
    data = torch.randn(8, 50).double(), torch.zeros(8)

    def loss(model, x, y):
        return (model.bias**2).sum()

    settings = {"loss": loss, "direction": "random", "over": "**", "samples": 8, "size": 3}
    by_tensor = landscape.line(model, data, normalisation="tensor", **settings)
    np.testing.assert_allclose(by_tensor["loss"], [0.5, 0, 0.5], rtol=1e-6)
    assert by_tensor.attrs["normalisation"] == "tensor"
    np.testing.assert_allclose(by_tensor.attrs["length_alpha"], 1, rtol=1e-12)

    # Filter by filter it would not move: a bias of norm 0 gets a direction of norm 0.
    by_layer = landscape.line(model, data, normalization="layer", **settings)
    np.testing.assert_array_equal(by_layer["loss"], 0)


def test_branches_that_are_not_stored_cannot_be_covered():
    model, data = make()
    complaint = r'`extra`: expected .* got 48 of 240 .*method="exact"'
    with attach(model, method="compressed") as probe, pytest.raises(ValueError, match=complaint):
        landscape.dilution(model, data, probe, samples=30, size=3)
