"""Evaluate a model at a point: displace it, measure it on all samples, put it back."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from landscape._evaluation.compatibility import evaluate_on_model
from landscape._evaluation.displace import (
    FirstLayer,
    Point,
    displacing,
    following_first_layer,
    restoring,
)
from landscape._evaluation.objective import (
    Mean,
    bring_to_host,
    evaluate_on_batch,
    margins,
)
from landscape._evaluation.problem import Measurement, Problem, batch_norms
from resonance_toolkit import (
    Batches,
    call_model,
    correct_shares,
    count_samples,
    devices_of,
    evaluating,
    preserving,
    seed_generators,
)

Row = list[float]


@dataclass(frozen=True)
class Plan:
    """How points are evaluated; see `calibrate`. No value depends on it, but for `reseed`.

    Attributes:
        reseed: The model draws random numbers: seed them alike at every point.
        first_layer: A linear layer that answers from products; None if there is none.
        threads: Of torch; None leaves their number alone.
        record_margins: Append the margin of each sample to the values.
    """

    reseed: bool = False
    first_layer: str | None = None
    threads: int | None = None
    record_margins: bool = False


@contextmanager
def point_evaluator(problem: Problem, plan: Plan) -> Iterator[Callable[[Point], Row]]:
    """Give a function that evaluates the model at `weights + sum of distance * axis`.

    It must not be called after the block: by then the model is back where it was.
    """
    measurement = problem.measurement
    model = measurement.model
    devices = devices_of(model)

    with ExitStack() as stack:
        stack.enter_context(limiting_threads(plan.threads))
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())

        # Recomputed statistics, or a model that counts its calls, write to buffers.
        stack.enter_context(restoring(dict(model.named_buffers())))

        # A closure calls the model itself: its last output tells the accuracy.
        caught_outputs: list[Any] = []
        if measurement.objective.kind == "closure":
            hook = model.register_forward_hook(
                lambda _module, _args, outputs: caught_outputs.append(outputs)
            )
            stack.enter_context(hook)

        layer = None
        if plan.first_layer is not None:
            layer = stack.enter_context(
                following_first_layer(model, plan.first_layer, problem.axes, measurement.batches)
            )

        # What the first layer answers for need not be moved.
        unmoved = layer.tensor_names if layer is not None else set()
        tensors = {name: t for name, t in problem.tensors.items() if name not in unmoved}
        move = stack.enter_context(displacing(tensors, problem.axes))

        def evaluate_point(point: Point) -> Row:
            move(point)
            if layer is not None:
                layer.point = point

            if plan.reseed:
                seed_generators(measurement.seed, devices)
            if measurement.bn == "recompute":
                _recompute_statistics(model, measurement.batches)

            row = _measure(measurement, plan, layer, caught_outputs)
            return row if problem.probe is None else row + problem.probe.measure()

        yield evaluate_point


def _measure(
    measurement: Measurement, plan: Plan, layer: FirstLayer | None, caught_outputs: list[Any]
) -> Row:
    """The values of the model as it stands, over all batches."""
    model = measurement.model
    objective = measurement.objective
    losses = Mean()
    accuracy = Mean()
    metric_means = {name: Mean() for name in objective.metrics}
    batch_margins: list[Tensor] = []

    for index, (inputs, targets) in enumerate(measurement.batches):
        if layer is not None:
            layer.batch = index
        caught_outputs.clear()
        batch = inputs, targets
        n_samples = count_samples(inputs)

        outputs = call_model(model, inputs) if objective.kind == "outputs" else None
        loss = evaluate_on_batch(objective.loss, objective.kind, model, batch, outputs)
        losses.add(loss, n_samples)

        if objective.kind == "closure":
            outputs = caught_outputs[-1] if caught_outputs else None
        shares = correct_shares(outputs, targets, objective.ignored_target)
        accuracy.add(shares, n_samples if shares is None else len(shares))
        if plan.record_margins:
            batch_margins.append(margins(outputs, targets))

        for name, (kind, metric) in objective.metrics.items():
            if kind != "model":
                value = evaluate_on_batch(metric, kind, model, batch, outputs)
                metric_means[name].add(value, n_samples)

    means = [losses, accuracy, *metric_means.values()]
    batch_margins = bring_to_host(means, batch_margins)

    # In the order of `Problem.value_names`; margins, if any, come last.
    standard_error = math.nan if objective.is_weighted else losses.standard_error()
    row = [losses.mean(), standard_error, accuracy.mean_of_numbers()]
    for name, (kind, metric) in objective.metrics.items():
        is_of_model = kind == "model"
        row.append(evaluate_on_model(metric, model) if is_of_model else metric_means[name].mean())
    if batch_margins:
        row += torch.cat(batch_margins).tolist()
    return row


def _recompute_statistics(model: nn.Module, batches: Batches) -> None:
    """Set the running statistics of batch norm to those of the samples at this point."""
    norms = batch_norms(model)
    momenta = [module.momentum for module in norms]

    try:
        for module in norms:
            module.reset_running_stats()
            module.train()
            module.momentum = None  # a cumulative mean, every batch alike
        for inputs, _ in batches:
            call_model(model, inputs)
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()


@contextmanager
def limiting_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads; None leaves their number alone."""
    count_before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        if count is not None:
            torch.set_num_threads(count_before)
