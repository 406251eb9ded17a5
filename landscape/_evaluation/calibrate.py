"""Choose how to evaluate many points: a plan that makes them comparable, then fast.

    reseeding     a model that draws random numbers draws the same ones at every point
    first layer   a linear layer that reads the data answers from products made once
    threads       one, or as many as torch has, whichever is faster

Nothing chosen here depends on a clock, except the number of threads, and that only where both
numbers give the same bits: the same inputs give the same result.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape._directions.parameters import Params
from landscape._evaluation.displace import restoring
from landscape._evaluation.point import Plan, point_evaluator
from landscape._evaluation.problem import Problem
from resonance_toolkit import (
    call_model,
    count_samples,
    device_of,
    devices_of,
    evaluating,
    is_compiled,
    preserving,
    unwrap,
)

Array = NDArray[np.float64]

# Below so many points, trying costs more than it can save.
_FEWEST_POINTS_FOR_FIRST_LAYER = 10
_FEWEST_POINTS_FOR_THREADS = 100

# Inputs of a linear layer below which adding two products costs as much as making one.
_MIN_INPUTS = 32

# Bytes that the products of a first layer may take.
_PRODUCTS_BUDGET = 2**30


def calibrate(problem: Problem, points: Array) -> Plan:
    """Settle reseeding, first-layer linearity and threads for evaluating these points."""
    plan = Plan(reseed=_draws_random_numbers(problem))

    # A probe looks at the weights, so all of them must really be at the point.
    if problem.probe is not None or len(points) < _FEWEST_POINTS_FOR_FIRST_LAYER:
        return plan

    trial_points = points[[len(points) // 3, -1]].tolist()
    plan = _use_first_layer(problem, plan, trial_points[0])

    if len(points) >= _FEWEST_POINTS_FOR_THREADS:
        plan = _choose_threads(problem, plan, trial_points)
    return plan


def _draws_random_numbers(problem: Problem) -> bool:
    measurement = problem.measurement
    small_problem = Problem(
        replace(measurement, batches=[measurement.few_samples]), problem.tensors, problem.axes
    )

    devices = sorted(devices_of(measurement.model), key=str)
    with point_evaluator(small_problem, Plan()) as evaluate_point:
        states_before = _random_states(devices)
        evaluate_point([0.0] * len(problem.axes))
        states_after = _random_states(devices)
    return not all(torch.equal(a, b) for a, b in zip(states_before, states_after, strict=True))


def _random_states(devices: Sequence[torch.device]) -> list[Tensor]:
    accelerators = [device for device in devices if device.type != "cpu"]
    states = [torch.get_device_module(d).get_rng_state(d) for d in accelerators]
    return [torch.get_rng_state(), *states]


def _use_first_layer(problem: Problem, plan: Plan, trial_point: list[float]) -> Plan:
    """The plan with a first layer, if there is one and it gives the same loss at a trial point."""
    measurement = problem.measurement
    if not measurement.objective.needs_only_outputs or plan.reseed or measurement.bn == "recompute":
        return plan

    few_inputs, _ = measurement.few_samples
    first_layer = _find_first_layer(measurement.model, problem.tensors, few_inputs)
    if first_layer is None:
        return plan

    name, bytes_per_sample = first_layer
    n_products = len(problem.axes) + 1
    if measurement.n_samples * bytes_per_sample * n_products > _PRODUCTS_BUDGET:
        return plan

    candidate = replace(plan, first_layer=name)
    with point_evaluator(problem, plan) as evaluate_point:
        plain_loss = evaluate_point(trial_point)[0]

    # With NaN in place of the layer's own weights: if anything else reads them, the loss tells.
    layer_names = (f"{name}.weight", f"{name}.bias")
    layer_tensors = {key: t for key, t in problem.tensors.items() if key in layer_names}
    with point_evaluator(problem, candidate) as evaluate_point, restoring(layer_tensors):
        for tensor in layer_tensors.values():
            tensor.data.fill_(torch.nan)
        quick_loss = evaluate_point(trial_point)[0]

    # A chaotic network magnifies round-off beyond these: it does without.
    is_double = next(iter(problem.tensors.values())).dtype == torch.float64
    is_same = math.isclose(plain_loss, quick_loss, rel_tol=1e-9 if is_double else 1e-4)
    return candidate if is_same else plan


def _find_first_layer(model: nn.Module, tensors: Params, inputs: Any) -> tuple[str, int] | None:
    """Find a linear layer whose input does not depend on anything that moves.

    Known from autograd: with every moving tensor requiring gradients, the layer's input needs none.

    Returns:
        The layer's name and the bytes of its output for each sample, or None.
    """
    # Compiled and parallel models keep copies of the forward that is to be replaced.
    if unwrap(model) is not model or any(is_compiled(module) for module in model.modules()):
        return None

    calls: dict[str, list[int]] = {}
    with ExitStack() as stack:
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.enable_grad())

        for tensor in tensors.values():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(True)

        for name, module in model.named_modules():
            is_plain = type(module) is nn.Linear and "forward" not in vars(module)
            if is_plain and f"{name}.weight" in tensors and module.in_features >= _MIN_INPUTS:
                stack.enter_context(module.register_forward_hook(_noting_calls(calls, name)))

        call_model(model, inputs)

    # Called once, on an input that stays the same.
    n_samples = count_samples(inputs)
    candidates = (
        (name, sizes[0] // n_samples)
        for name, sizes in calls.items()
        if len(sizes) == 1 and sizes[0]
    )
    return next(candidates, None)


def _noting_calls(calls: dict[str, list[int]], name: str) -> Any:
    """A hook that notes the bytes of an output; 0 if the input is differentiable."""

    def note(_module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        is_fixed = bool(args) and isinstance(args[0], Tensor) and not args[0].requires_grad
        n_bytes = output.numel() * output.element_size()
        calls.setdefault(name, []).append(n_bytes if is_fixed else 0)

    return note


def _choose_threads(problem: Problem, plan: Plan, trial_points: list[list[float]]) -> Plan:
    """The faster of one thread and torch's own number, if both give the same bits."""
    threads = torch.get_num_threads()
    if threads == 1 or device_of(problem.measurement.model).type != "cpu":
        return plan

    seconds = {}
    values = {}
    for count in (threads, 1):
        with point_evaluator(problem, replace(plan, threads=count)) as evaluate_point:
            evaluate_point(trial_points[0])  # to warm up
            started = time.perf_counter()
            rows = [evaluate_point(point) for point in trial_points]
            seconds[count] = time.perf_counter() - started
            values[count] = repr(rows)

    if values[threads] != values[1]:
        return plan
    return replace(plan, threads=min(seconds, key=seconds.__getitem__))
