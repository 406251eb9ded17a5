from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._directions.parameters import Extra
from landscape._directions.vectors import Normalisation
from landscape._evaluation.adaptive import METHODS, Adaptive, Method
from landscape._evaluation.points import EvaluateAll, Strategy, evaluate
from landscape._evaluation.problem import BatchNormStatistics, Request
from landscape._surfaces.axes import (
    Directions,
    choose_directions,
    either_spelling,
    make_problem_along,
    plane_coordinates,
)
from landscape._surfaces.dataset import as_surface, attributes_of, plane_attributes
from resonance_toolkit import AtMost, check_choice, check_positive


def grid(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    directions: Directions = "random",
    normalisation: Normalisation | None = None,
    normalization: Normalisation | None = None,
    over: str | Sequence[str] | None = None,
    extra: Extra | None = None,
    samples: int | None = AtMost(500),
    size: int | tuple[int, int] = 51,
    span: float | tuple[float, float] = 1.0,
    seed: int = 0,
    bn: BatchNormStatistics = "frozen",
    method: Method = "exact",
    tolerance: float = 1e-2,
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on a plane through the weights.

    The plane is `weights + alpha * first + beta * second`. By default, the two directions are
    Gaussian, orthogonalised, then scaled filter by filter to the norms of the weights (Li et al.
    2018), so that a distance of 1 moves every filter by its own norm. The model runs in eval mode,
    without dropout. If it draws random numbers all the same, they are the same at every point. With
    an odd `size`, the model itself is a point of the plane, at (0, 0).

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        loss: A function of `(outputs, targets)` or `(model, x, y)` that returns a mean over the
            batch or one value per sample. By default, the targets decide: cross-entropy for
            classes, tokens, pixels or distributions, sigmoid losses for several labels. Targets
            of -100 are ignored: the loss is the mean over the other positions of a sample, then
            over samples that have one. Real-valued targets need a loss, such as
            `torch.nn.functional.mse_loss`. Class weights of torch's losses count as in one batch of
            all samples; a mean of your own function is weighted by batch size.
        metrics: Further values to compute, by name: callables like `loss`, callables of `(model)`
            alone, or loss-landscapes metrics.
        directions: `"random"`; `"gradient"` (the second one is random); `"hessian"` (the two
            eigenvectors of the largest eigenvalues); or one or two mappings of tensors by parameter
            name, such as those of `principal_directions`. A missing second one is random.
        normalisation: `"filter"` (each filter to the norm of its weights), `"layer"` (each tensor
            to the norm of its weights), `"tensor"` (every tensor to the same norm, and the whole
            direction to norm 1), `"unit"` (the whole direction to norm 1) or `"none"`;
            by default `"filter"` for random directions, `"none"` for directions that you pass, else
            `"unit"`.
        normalization: Another spelling of `normalisation`.
        over: Names or patterns of the parameters that move; by default trained weights of two or
            more dimensions, so neither biases nor the parameters of norms.
        extra: A module (such as a probe) or mapping of tensors that the directions cover as well,
            under names that start with `"extra."`. With `"tensor"`, every branch of a probe is
            scaled by itself, although the probe stacks them in one tensor. A module of your own
            names such stacked tensors in an attribute `stacked_tensors`, a tuple.
        samples: How many samples to draw, at most; None takes all.
        size: Number of points along alpha and along beta.
        span: The axes run from `-span` to `span`.
        seed: Determines samples and directions.
        bn: The running statistics of batch norms: `"frozen"`, or `"recompute"` at every point.
        method: `"exact"` evaluates every point. `"adaptive"` evaluates some points and interpolates
            the others, and adds points until the estimated error is below `tolerance` or all points
            are evaluated.
        tolerance: Largest allowed error of an interpolated loss, relative to the range of the
            surface. The accuracy of tokens and pixels, or of more than 2000 samples, is NaN where
            it was not evaluated, unless interpolation predicts points that were left out to 0.02.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        checkpoint: A file for finished points. After a kill, the same call continues from it.
        executor: A `concurrent.futures.Executor` that evaluates pieces of the plane; by default
            this process does.

    Returns:
        Dataset over `(alpha, beta)` with

        - `loss`, and its standard error over samples, `loss_se` (NaN if `loss` returns one number
          per batch or has class weights);
        - `accuracy`: the share of a sample's positions that are right, of those that count, then
          the mean over samples (NaN if targets are not classes, or if the model returns several
          tensors, none of them called `logits` or `out`);
        - `evaluated`, whether a point was evaluated or interpolated; and the metrics.

        Non-finite values are kept, and counted in the attribute `n_non_finite`. The attribute
        `targets` says how the targets were understood.

    Raises:
        ValueError: If an argument does not fit, the targets do not determine a loss, the data
            change between passes, or there is nothing to move.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> import torch
        >>> model, one = nn.Linear(1, 1, bias=False), {"weight": torch.ones(1, 1)}
        >>> x = torch.ones(2, 1)
        >>> y = model(x).detach()  # a perfect fit, so loss = (alpha + beta) ** 2
        >>> surface = grid(model, (x, y), loss=nn.functional.mse_loss, directions=[one, one],
        ...                samples=2, size=3)
        >>> surface["loss"].round(5).values
        array([[4., 1., 0.],
               [1., 0., 1.],
               [0., 1., 4.]])
    """
    alphas, betas = plane_coordinates(size, span)
    choice = choose_directions(
        directions, either_spelling(normalisation, normalization), over=over, extra=extra
    )
    check_choice("method", method, METHODS)
    tolerance = check_positive("tolerance", tolerance)

    # What tells this surface from others of the same model, in attributes and checkpoints.
    settings: dict[str, Any] = {
        "directions": choice.name,
        "normalisation": choice.normalisation,
        "method": method,
        "tolerance": tolerance if method == "adaptive" else 0.0,
    }
    request = Request(
        data, loss=loss, metrics=metrics, samples=samples, seed=seed, bn=bn, batch_size=batch_size
    )
    problem = make_problem_along(model, request, choice, settings=settings)

    strategy: Strategy = EvaluateAll()
    if method == "adaptive":
        strategy = Adaptive((len(alphas), len(betas)), tolerance, problem.measurement.seed)

    evaluation = evaluate(
        problem,
        np.array([(alpha, beta) for alpha in alphas for beta in betas]),
        points_per_piece=len(betas),
        checkpoint=checkpoint,
        executor=executor,
        strategy=strategy,
    )

    attributes = attributes_of(evaluation, "landscape.grid", over=over, **settings)
    attributes |= plane_attributes(problem)
    attributes["error_estimate"] = evaluation.error_estimate
    return as_surface(
        evaluation.values,
        {"alpha": alphas, "beta": betas},
        attributes=attributes,
        evaluated=evaluation.evaluated,
    )
