"""What a surface takes in memory, and that directions held in half of it are the same ones."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import landscape
from landscape._directions.parameters import module_by_tensor_name, tensors_to_move
from landscape._directions.random_directions import draw_directions
from landscape._evaluation.displace import displacing
from tests.helpers.state import snapshot


def peak_bytes(work):
    """The most that torch had allocated during `work`, beyond what was there before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    records = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(records, key=lambda e: e.start_ns())]
    return int(np.cumsum(changes).max(initial=0))


def deep(width=700, layers=10):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    return model, (torch.randn(4, width), torch.arange(4))


def written_out(model):
    return [
        {n: torch.randn_like(p) for n, p in model.named_parameters() if p.dim() > 1}
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("directions", "copies"),
    [("random", 2), ("given", 1)],  # the tensors given are the user's own
)
def test_a_grid_takes_no_more_memory_than_two_directions(directions, copies):
    model, data = deep()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    axes = written_out(model) if directions == "given" else "random"
    metric = {"m": lambda model: 0.0}  # forbids the short cut, which would need less
    peak = peak_bytes(
        lambda: landscape.grid(model, data, samples=4, size=4, directions=axes, metrics=metric)
    )
    assert copies * size < peak * 1.01
    assert peak < copies * size + 5 * 2**20  # and what is widened at a time: a quarter million


def test_a_function_that_is_still_held_holds_no_copy_of_the_weights():
    model, _ = deep()
    moving = tensors_to_move(model, None, None)
    size = sum(p.numel() * p.element_size() for p in model.parameters())

    def twice():
        kept = []
        for _ in range(2):
            with displacing(moving, []) as move:
                kept.append(move)

    assert peak_bytes(twice) < 1.1 * size


@pytest.mark.parametrize("normalisation", ["filter", "layer", "unit", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_moving_along_held_directions_is_moving_along_the_same_written_out(normalisation, dtype):
    torch.manual_seed(0)
    layers = [nn.Linear(600, 500), nn.ConvTranspose1d(4, 6, 3, groups=2), nn.Embedding(5, 7)]
    model = nn.Sequential(*layers).to(dtype)
    model.register_parameter("number", nn.Parameter(torch.tensor(1.5, dtype=dtype)))
    before = snapshot(model)
    moving = tensors_to_move(model, "**", None)
    axes = draw_directions(
        moving, module_by_tensor_name(model, None), normalisation, seed=0, count=2
    )
    expected = {
        name: p.detach().double() + 0.3 * axes[0][name].double() - 0.7 * axes[1][name].double()
        for name, p in moving.items()
    }
    precision = torch.finfo(dtype).eps
    with torch.no_grad(), displacing(moving, axes) as move:
        move([5.0, 5.0])
        move([0.3, -0.7])
        for name, p in moving.items():  # 600 x 500 is more than is moved at a time
            room = 8 * precision * expected[name].abs().max().item()
            torch.testing.assert_close(p.double(), expected[name], rtol=0, atol=room)
        move([0.0, 0.0])
        assert snapshot(model)["values"] == before["values"]
    assert snapshot(model) == before


def test_a_direction_made_of_the_weights_themselves_stays_where_it_was():
    torch.manual_seed(0)
    model = nn.Linear(2, 2, bias=False).double()
    start = model.weight.detach().clone()
    seen = []
    landscape.grid(
        model,
        (torch.ones(2, 2).double(), torch.arange(2)),
        samples=2,
        size=3,
        directions=[{"weight": model.weight}, {"weight": model.weight.detach().T}],
        metrics={"m": lambda model: seen.append(model.weight.clone()) or 0.0},
    )
    for index, point in enumerate((a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)):
        moved = start + point[0] * start + point[1] * start.T
        torch.testing.assert_close(seen[index - 9], moved, rtol=1e-14, atol=1e-15)


def test_random_numbers_are_gaussian_and_independent():
    moving = {"weight": torch.empty(400, 1000)}
    first, second = draw_directions(moving, {}, "none", seed=3, count=2)
    for axis in (first, second):
        x = axis["weight"].double()
        n = x.numel()
        assert abs(x.mean()) < 4 / math.sqrt(n)
        assert abs(x.var() - 1) < 4 * math.sqrt(2 / n)
        assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n)
    flat = first["weight"].double().flatten()
    for lag in (1, 2**18):  # also between pieces that are drawn one after the other
        assert abs((flat[lag:] * flat[:-lag]).mean()) < 4 / math.sqrt(len(flat) - lag)
    cosine = torch.nn.functional.cosine_similarity(flat, second["weight"].double().flatten(), dim=0)
    assert abs(cosine) < 1e-7
