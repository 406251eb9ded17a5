"""Set a scene: what is measured, on which samples, moving which tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from landscape._directions.parameters import Extra, moving_tensors
from landscape._evaluation.calibrate import micro_batches
from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.objective import make_objective
from landscape._evaluation.point import Scene, batch_norms
from landscape._evaluation.samples import fixed_samples
from resonance_toolkit import device_of, provenance

_LONGEST = 20_000  # characters of an attribute: netCDF takes 64 kB for all


def build_scene(
    model: nn.Module,
    data: Any,
    loss: Callable[..., Any] | None,
    metrics: Mapping[str, Callable[..., Any]] | None,
    over: str | Sequence[str] | None,
    extra: Extra | None,
    *,
    samples: int | None,
    seed: int,
    bn: str,
    batch_size: int | None,
) -> Scene:
    """Check the arguments that all verbs share, and bring them together; axes come later."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model`: expected an nn.Module, got {type(model).__name__}")
    if bn not in ("frozen", "recompute"):
        raise ValueError(f"`bn`: expected frozen | recompute, got {bn!r}")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"`batch_size`: expected a whole number of at least 1, got {batch_size!r}")
    moving = moving_tensors(model, over, extra)
    objective = make_objective(loss, metrics)
    batches = fixed_samples(model, data, objective, samples, seed)
    batches = micro_batches(model, batches, batch_size, whole=objective.is_weighted)
    return Scene(model, moving, (), batches, objective, bn=bn, seed=seed)


def describe(scene: Scene, verb: str, **settings: Any) -> dict[str, str | int | float]:
    """Attributes that say what was measured and how."""
    names = ", ".join(scene.moving)
    if len(names) > _LONGEST:
        names = f"{names[:_LONGEST]} ... ({len(scene.moving)} in all)"
    return provenance(
        verb,
        scene.model,
        **settings,
        seed=scene.seed,
        n_samples=scene.n_samples,
        moved=names,
        n_moved=sum(t.numel() for t in scene.moving.values()),
        mode="eval: dropout off",
        random_numbers="same at every point" if scene.reseed else "none drawn",
        batch_norm=f"{scene.bn} statistics" if batch_norms(scene.model) else "none",
        loss_function=scene.objective.loss_name,
        dtype=str(next(iter(scene.moving.values())).dtype),
        device=device_of(scene.model).type,
    )


def identity(scene: Scene) -> dict[str, str | int | float]:
    """What must be the same for two runs to give the same values."""
    tensors = [*scene.model.parameters(), *scene.model.buffers(), *scene.moving.values()]
    return describe(scene, "identity") | {
        "weights": fingerprint(tensors),
        "data": fingerprint(scene.batches),
        "axes": fingerprint(axis[name] for axis in scene.axes for name in axis),
        "batches": ", ".join(str(len(tree_leaves(x)[0])) for x, _ in scene.batches),
        "metrics": ", ".join(scene.objective.metrics),
    }
