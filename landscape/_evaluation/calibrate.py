"""Choose how to evaluate points fast: micro-batches, threads, first-layer linearity.

Nothing chosen here depends on a clock, except the number of threads, and that only where both
numbers give the same bits: the same inputs give the same result.
"""

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from landscape._evaluation.displace import restoring
from landscape._evaluation.first_layer import find_first_layer
from landscape._evaluation.point import Scene, standing
from resonance_toolkit import Batches, device_of, evaluating, preserving

Array = NDArray[np.float64]
_WORKING_SET = 8 * 2**20  # bytes of the largest activation: a few of them still fit a shared cache
_PRODUCTS = 2**30  # bytes that the products of a first layer may take


def micro_batches(
    model: nn.Module, batches: Batches, batch_size: int | None, *, whole: bool = False
) -> Batches:
    """Cut the samples into equal batches whose activations stay in the cache of a CPU.

    Unless `batch_size` is given, or they must stay `whole`: for a loss that weighs samples.

    Measured on two cores, 500 images: 50 to 100 at a time take 0.45 to 0.75 of the time of 500.
    """
    x, y = tree_map(lambda *leaves: torch.cat(leaves), *batches) if len(batches) > 1 else batches[0]
    samples = len(tree_leaves(x)[0])
    if batch_size is None and whole:
        batch_size = samples
    elif batch_size is None:
        room = _WORKING_SET if device_of(model).type == "cpu" else 64 * _WORKING_SET
        batch_size = max(8, room // max(_largest_activation(model, x), 1))
    pieces = math.ceil(samples / batch_size)
    edges = [samples * i // pieces for i in range(pieces + 1)]
    return [
        tree_map(lambda leaf, rows=slice(*pair): leaf[rows], (x, y)) for pair in pairwise(edges)
    ]


def calibrate(scene: Scene, points: Array) -> Scene:
    """Settle reseeding, first-layer linearity and threads for evaluating many points."""
    scene = replace(scene, reseed=_draws_random_numbers(scene))
    if len(points) < 10:
        return scene
    probe = points[[len(points) // 3, -1]].tolist()
    scene = _with_first_layer(scene, probe[0])
    threads = torch.get_num_threads()
    if threads == 1 or device_of(scene.model).type != "cpu" or len(points) < 100:
        return scene
    timed = {}
    for count in (threads, 1):
        candidate = replace(scene, threads=count)
        with standing(candidate) as at:
            at(probe[0])
            started = time.perf_counter()
            values = [at(point) for point in probe]
            timed[count] = (time.perf_counter() - started, repr(values), candidate)
    same_bits = timed[threads][1] == timed[1][1]
    return min(timed.values(), key=lambda t: t[0])[2] if same_bits else scene


def _with_first_layer(scene: Scene, point: list[float]) -> Scene:
    if not scene.objective.needs_only_outputs or scene.reseed or scene.bn == "recompute":
        return scene
    found = find_first_layer(scene.model, scene.moving, scene.batches[0][0])
    if found is None:
        return scene
    name, bytes_per_sample = found
    samples = sum(len(tree_leaves(x)[0]) for x, _ in scene.batches)
    if samples * bytes_per_sample * (len(scene.axes) + 1) > _PRODUCTS:
        return scene
    candidate = replace(scene, first_layer=name)
    with standing(scene) as at:
        plain = at(point)[0]
    own = {key: t for key, t in scene.moving.items() if key in (f"{name}.weight", f"{name}.bias")}
    with standing(candidate) as at, restoring(own):
        for tensor in own.values():
            tensor.data.fill_(torch.nan)  # tells whether anything else reads them
        quick = at(point)[0]
    # Off where the weights are read elsewhere too, or a chaotic network magnifies round-off.
    single = next(iter(scene.moving.values())).dtype != torch.float64
    return candidate if math.isclose(plain, quick, rel_tol=1e-4 if single else 1e-9) else scene


def _largest_activation(model: nn.Module, x: Any) -> int:
    """Bytes per sample of the largest tensor that a layer gives."""
    largest = 0

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        nonlocal largest
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                largest = max(largest, leaf.numel() * leaf.element_size() // count)

    few = tree_map(lambda leaf: leaf[:2], x)
    count = len(tree_leaves(few)[0])
    with ExitStack() as stack:
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        for module in model.modules():
            stack.enter_context(module.register_forward_hook(note))
        model(few)
    return largest


def _draws_random_numbers(scene: Scene) -> bool:
    few = tree_map(lambda leaf: leaf[:2], scene.batches[0])
    device = device_of(scene.model)
    with standing(replace(scene, batches=[few])) as at:
        before = _random_states(device)
        at([0.0] * len(scene.axes))
        after = _random_states(device)
    return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states
