"""The verbs of `landscape`, for the contract suite."""

import copy

import torch

import landscape


def another(model):
    """The state of a model with other weights."""
    moved = copy.deepcopy(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    for tensor in moved.values():
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.mul_(1 + 0.1 * noise.to(tensor.device))
    return moved


def path(model):
    """Three checkpoints that are not on one line."""
    far = {name: 1.1 * t if t.dim() > 1 else t for name, t in model.state_dict().items()}
    return [another(model), far, copy.deepcopy(model.state_dict())]


def in_pieces(data):
    """The same samples as keywords, in two batches of unequal shape."""
    x, y = data
    return [{"x": x[:8], "labels": y[:8]}, {"x": x[8:, :, :5], "labels": y[8:]}]


def partly_ignored(data):
    """Some targets that do not count."""
    x, y = data
    return {"x": x, "labels": y.masked_fill(y == 1, -100).int()}


VERBS = {
    "landscape.grid keywords": lambda model, data: landscape.grid(
        model, partly_ignored(data), samples=12, size=3
    ),
    "landscape.grid unequal batches": lambda model, data: landscape.grid(
        model, in_pieces(data), samples=12, size=3
    ),
    "landscape.curvature unequal batches": lambda model, data: landscape.curvature(
        model, in_pieces(data), samples=12, k=1, trace_probes=2, density_runs=0
    ),
    "landscape.curve unequal batches": lambda model, data: landscape.curve(
        model,
        another(model),
        in_pieces(data),
        landscape.bend(model, another(model), in_pieces(data), steps=2, batch_size=12),
        samples=12,
        size=3,
    ),
    "landscape.grid gradient": lambda model, data: landscape.grid(
        model, data, samples=12, size=3, directions="gradient"
    ),
    "landscape.grid hessian": lambda model, data: landscape.grid(
        model, data, samples=12, size=3, directions="hessian"
    ),
    "landscape.curvature": lambda model, data: landscape.curvature(
        model, data, samples=12, k=2, trace_probes=3, density_runs=1, density_steps=5
    ),
    "landscape.curvature gauss-newton": lambda model, data: landscape.curvature(
        model, data, samples=12, k=2, trace_probes=3, density_runs=0, matrix="gauss-newton"
    ),
    "landscape.curvature by layer": lambda model, data: landscape.curvature(
        model, data, samples=12, k=1, by="layer", max_products=5, trace_probes=2, density_runs=0
    ),
    # Of the head alone, behind which there is no kink.
    "landscape.curvature finite difference": lambda model, data: landscape.curvature(
        model,
        data,
        over="head.*",
        samples=12,
        k=1,
        product="finite difference",
        max_products=4,
        density_runs=0,
    ),
    "landscape.critical_sharpness": lambda model, data: landscape.critical_sharpness(
        model, data, samples=12
    ),
    "landscape.curvature_map": lambda model, data: landscape.curvature_map(
        model, data, samples=12, size=2, max_products=5
    ),
    "landscape.grid": lambda model, data: landscape.grid(model, data, samples=12, size=5),
    "landscape.grid recompute": lambda model, data: landscape.grid(
        model, data, samples=12, size=3, bn="recompute"
    ),
    "landscape.smoothness": lambda model, data: landscape.smoothness(
        landscape.grid(model, data, samples=12, size=3)
    ),
    "landscape.dilution": lambda model, data: landscape.dilution(
        model, data, {"branch": model.head.weight.detach().clone()}, samples=12, size=3
    ),
    "landscape.line": lambda model, data: landscape.line(
        model, data, to=another(model), samples=12, size=3
    ),
    "landscape.plane": lambda model, data: landscape.plane(
        [model, *path(model)[:2]], data, samples=12, size=3
    ),
    "landscape.trajectory": lambda model, data: landscape.trajectory(
        model, path(model), data, samples=12, size=3
    ),
    "landscape.curve": lambda model, data: landscape.curve(
        model,
        another(model),
        data,
        landscape.bend(model, another(model), data, steps=3, samples=12, batch_size=6),
        samples=12,
        size=3,
    ),
}
