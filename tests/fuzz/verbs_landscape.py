"""The verbs of `landscape` on random cases."""

import torch

import landscape
from tests.fuzz.cases import Case
from tests.fuzz.options import batch_size_for, loss_for, mostly, samples_for


def _plane_options(case: Case):
    choose = case.choose
    return {
        "samples": samples_for(case),
        "batch_size": batch_size_for(case),
        "loss": loss_for(case),
        "seed": choose.choice([0, 3]),
        "normalisation": mostly(case, [None, "filter", "layer", "none"], ["unit", "no such"]),
        "bn": choose.choice(["frozen", "recompute"]),
        "over": mostly(case, [None, None, "*.weight"], ["head*", "*", "no such"]),
    }


def grid(case: Case):
    choose = case.choose
    return landscape.grid(
        case.model,
        case.data,
        size=mostly(case, [1, 2, 3, (3, 1)], [0, (2,)]),
        span=mostly(case, [1.0, 0.1], [-1, 0]),
        directions=choose.choice(["random", "gradient", "random"]),
        **_plane_options(case),
    )


def plain_grid(case: Case):
    """With nothing but defaults, so that the loss in the centre is known."""
    return landscape.grid(case.model, case.data, size=3, samples=None)


def line(case: Case):
    return landscape.line(case.model, case.data, size=3, **_plane_options(case))


def curvature(case: Case):
    choose = case.choose
    return landscape.curvature(
        case.model,
        case.data,
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        loss=loss_for(case),
        k=choose.choice([0, 1, 2, 500]),
        trace_probes=choose.choice([0, 1, 2]),
        density_runs=choose.choice([0, 1]),
        matrix=choose.choice(["hessian", "gauss-newton"]),
    )


def curvature_by_layer(case: Case):
    choose = case.choose
    return landscape.curvature(
        case.model,
        case.data,
        samples=samples_for(case),
        loss=loss_for(case),
        k=mostly(case, [1, 2], [500]),
        by=mostly(case, ["layer", "*"], [["head"], "blocks", "no such", []]),
        max_products=mostly(case, [3, 10], [0]),
        trace_probes=choose.choice([0, 2]),
        density_runs=0,
        product=choose.choice(["exact", "finite difference"]),
        memory=mostly(case, [0, 2**31], [-1]),
        basis=choose.choice(["device", "host"]),
    )


def critical_sharpness(case: Case):
    losses = {"first": loss_for(case), "second": loss_for(case)}
    one_or_two = mostly(case, [{"loss": loss_for(case)}, {"losses": losses}], [{"losses": {}}])
    update = {name: 0.1 * tensor for name, tensor in case.model.named_parameters()}
    return landscape.critical_sharpness(
        case.model,
        case.data,
        **one_or_two,
        direction=mostly(case, ["gradient", "gradient", update], [{"no such": case.x}, {}]),
        over=mostly(case, [None], ["*.weight", "no such"]),
        samples=samples_for(case),
        tolerance=mostly(case, [0.05, 1e-6], [0, "x"]),
        max_evaluations=mostly(case, [3, 9], [2]),
        batch_size=batch_size_for(case),
    )


def _moved(case: Case, factor: float = 1.1) -> dict[str, torch.Tensor]:
    """The state of the model with other weights, not on one line for other factors."""
    return {
        name: factor ** (1 + place % 3) * tensor if tensor.is_floating_point() else tensor
        for place, (name, tensor) in enumerate(case.model.state_dict().items())
    }


def _path_options(case: Case):
    return {
        "samples": samples_for(case),
        "batch_size": batch_size_for(case),
        "loss": loss_for(case),
        "size": mostly(case, [2, 3], [0, 2.5]),
        "bn": mostly(case, ["frozen", "recompute"], ["no such"]),
    }


def line_to(case: Case):
    """Between two models, whose ends are the losses of either."""
    return landscape.line(
        case.model,
        case.data,
        to=mostly(case, [_moved(case)], [{}, {"no such": case.x}]),
        **_path_options(case),
    )


def plane(case: Case):
    models = [case.model, _moved(case), _moved(case, 1.3)]
    return landscape.plane(
        mostly(case, [models], [models[:2], [case.model] * 3, []]),
        case.data,
        margin=mostly(case, [0.2, 0], [-1]),
        **_path_options(case),
    )


def trajectory(case: Case):
    path = [_moved(case, 1.3), _moved(case), case.model.state_dict()]
    return landscape.trajectory(
        case.model,
        mostly(case, [path], [path[:1], [path[0]] * 3, []]),
        case.data,
        steps=mostly(case, [None, [0, 5, 9]], [[0, 5], [0, 0, 0]]),
        **_path_options(case),
    )


def principal_directions(case: Case):
    path = [_moved(case, 1.3), _moved(case), case.model.state_dict()]
    return landscape.principal_directions(
        case.model,
        mostly(case, [path], [path[:2], []]),
        over=mostly(case, [None, "*.weight"], ["no such"]),
    )


def curve(case: Case):
    other = _moved(case)
    control = landscape.bend(
        case.model,
        other,
        case.data,
        loss=loss_for(case),
        steps=mostly(case, [1, 2], [0]),
        lr=mostly(case, [1e-2], [0, -1]),
        batch_size=mostly(case, [1, 2, 100], [0]),
        samples=samples_for(case),
    )
    return landscape.curve(
        case.model,
        other,
        case.data,
        mostly(case, [control], [{}, {"no such": case.x}]),
        **_path_options(case),
    )


def dilution(case: Case):
    name, weight = next(
        (name, tensor) for name, tensor in case.model.named_parameters() if tensor.dim() > 1
    )
    return landscape.dilution(
        case.model,
        case.data,
        mostly(case, [{name: weight.detach().clone()}, {"branch": weight.detach()}], [{}, 3]),
        size=mostly(case, [2, 3], [0]),
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        loss=loss_for(case),
        normalisation=mostly(case, [None, "filter", "layer", "none"], ["unit"]),
    )


def smoothness(case: Case):
    surface = landscape.grid(
        case.model, case.data, size=mostly(case, [3, 5], [2]), samples=samples_for(case)
    )
    return landscape.smoothness(
        mostly(case, [surface], [surface[[]]]),
        radii=mostly(case, [(0.5,), (0.25, 1.0)], [(), (-1,), ("x",)]),
    )


def curvature_map(case: Case):
    return landscape.curvature_map(
        case.model,
        case.data,
        size=2,
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        loss=loss_for(case),
        matrix=mostly(case, ["hessian", "gauss-newton"], ["no such"]),
        tolerance=mostly(case, [1e-2, 0.5], [0, -1]),
        max_products=mostly(case, [3], [0]),
        memory=mostly(case, [0, 2**31], [-1]),
    )


def eigenvectors(case: Case):
    return landscape.eigenvectors(
        case.model,
        case.data,
        k=mostly(case, [1, 2], [0, 500]),
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        loss=loss_for(case),
        max_products=mostly(case, [5], [0]),
        over=mostly(case, [None, "*.weight"], ["no such"]),
    )


def plain_curvature(case: Case):
    """All eigenvalues of one small layer, so that they are known."""
    last = "4.weight" if case.words["model"] == "mlp" else "head.weight"
    return landscape.curvature(
        case.model,
        case.data,
        k=2,
        samples=None,
        over=last,
        trace_probes=0,
        density_runs=0,
        tolerance=1e-6,
    )


VERBS = [
    grid,
    plain_grid,
    line,
    curvature,
    curvature_by_layer,
    critical_sharpness,
    line_to,
    plane,
    trajectory,
    principal_directions,
    curve,
    dilution,
    smoothness,
    curvature_map,
    eigenvectors,
    plain_curvature,
]
