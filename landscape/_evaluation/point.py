"""Evaluate a model displaced along directions."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from landscape._directions.parameters import Params
from landscape._directions.random_directions import Direction
from landscape._evaluation.displace import Point, displacing, restoring
from landscape._evaluation.first_layer import FirstLayer, following_first_layer
from landscape._evaluation.mean import Mean
from landscape._evaluation.objective import Objective, apply, apply_to_model, hits, margins
from resonance_toolkit import Batches, evaluating, preserving

Row = list[float]


@dataclass(frozen=True)
class Scene:
    """All that evaluating a point needs; can be pickled as one piece."""

    model: nn.Module
    moving: Params
    axes: tuple[Direction, ...]
    batches: Batches
    objective: Objective
    bn: str = "frozen"
    seed: int = 0
    reseed: bool = False
    first_layer: str | None = None
    threads: int | None = None
    margins: bool = False

    @property
    def values(self) -> list[str]:
        """What is measured at a point, in order."""
        return ["loss", "loss_se", "accuracy", *self.objective.metrics]

    @property
    def columns(self) -> int:
        """Numbers in a row: the values, then the margin of each sample if wanted."""
        return len(self.values) + (self.n_samples if self.margins else 0)

    @property
    def n_samples(self) -> int:
        """Samples on which it is measured."""
        return sum(_length(x) for x, _ in self.batches)


@contextmanager
def standing(scene: Scene) -> Iterator[Callable[[Point], Row]]:
    """Give a function that evaluates the model at `weights + sum of distance * axis`.

    It must not be called after the block: by then the model is back where it was.
    """
    model = scene.model
    with ExitStack() as stack:
        stack.enter_context(_threads(scene.threads))
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(restoring(dict(model.named_buffers())))
        outputs: list[Any] = []
        if scene.objective.kind == "closure":
            # The closure calls the model itself: its last output tells the accuracy.
            hook = model.register_forward_hook(lambda _module, _args, out: outputs.append(out))
            stack.enter_context(hook)
        layer = None
        if scene.first_layer is not None:
            following = following_first_layer(model, scene.first_layer, scene.axes, scene.batches)
            layer = stack.enter_context(following)
        still = layer.names if layer is not None else set()
        moving = {name: tensor for name, tensor in scene.moving.items() if name not in still}
        move = stack.enter_context(displacing(moving, scene.axes))

        def at(point: Point) -> Row:
            move(point)
            if layer is not None:
                layer.point = point
            if scene.reseed:
                torch.manual_seed(scene.seed)
            if scene.bn == "recompute":
                _recompute_statistics(model, scene.batches)
            return _measure(scene, layer, outputs)

        yield at


def _measure(scene: Scene, layer: FirstLayer | None, caught: list[Any]) -> Row:
    model, objective = scene.model, scene.objective
    losses, right, others = Mean(), Mean(), {name: Mean() for name in objective.metrics}
    room: list[Tensor] = []
    for index, (x, y) in enumerate(scene.batches):
        if layer is not None:
            layer.batch = index
        caught.clear()
        outputs = model(x) if objective.kind == "outputs" else None
        size = _length(x)
        losses.add(apply(objective.kind, objective.loss, model, x, y, outputs), size)
        if objective.kind == "closure":
            outputs = caught[-1] if caught else None
        right.add(hits(outputs, y), size)
        if scene.margins:
            room.append(margins(outputs, y))
        for name, (kind, metric) in objective.metrics.items():
            if kind != "model":
                others[name].add(apply(kind, metric, model, x, y, outputs), size)
    row = [losses.mean(), losses.standard_error(), right.mean()]
    for name, (kind, metric) in objective.metrics.items():
        row.append(apply_to_model(metric, model) if kind == "model" else others[name].mean())
    return row + (torch.cat(room).tolist() if room else [])


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms that keep running statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    return [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]


def _recompute_statistics(model: nn.Module, batches: Batches) -> None:
    """Set the running statistics of batch norm to those of the samples at this point."""
    norms = batch_norms(model)
    momenta = [m.momentum for m in norms]
    try:
        for module in norms:
            module.reset_running_stats()
            module.train()
            module.momentum = None  # a cumulative mean, every batch alike
        for x, _ in batches:
            model(x)
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


def _length(tree: Any) -> int:
    return len(next(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)))
