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

    The plane is `weights + alpha * first + beta * second`. With the default, Gaussian directions,
    orthogonalised, then scaled filter by filter to the norms of the weights (Li et al. 2018), a
    distance of 1 moves every filter by its own norm. The model is evaluated in eval mode, without
    dropout; random numbers that it draws are the same at every point. With an odd `size` the model
    itself is a sample, at (0, 0).

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (positional arguments of
            the model) or a mapping (its keywords); batches padded to unequal lengths stay apart.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default what targets ask for: cross-entropy of classes, tokens or pixels
            (-100 does not count: the mean is over a sample's positions that do, then over samples
            that have one), of distributions, or the sigmoid losses of several labels. Real numbers
            need a loss of their own, such as `torch.nn.functional.mse_loss`. Class weights of
            torch's losses count as in one batch of all samples; a mean of your own is weighted by
            batch size.
        metrics: Further values by name: callables like `loss`, of `(model)` alone, or
            loss-landscapes metrics.
        directions: `"random"`, `"gradient"` (then random), `"hessian"` (the two eigenvectors of the
            largest eigenvalues), or one or two mappings of tensors by parameter name, such as
            those of `principal_directions`; a missing second one is random.
        normalisation: `"filter"`, `"layer"` (each tensor to the norm of its weights), `"tensor"`
            (each to the same norm, and the whole to 1), `"unit"` (to 1 as one vector) or `"none"`;
            by default `"filter"` for random directions, `"none"` for given ones, else `"unit"`.
        normalization: Another spelling of `normalisation`.
        over: Names or patterns of the parameters that move; by default trained weights of two or
            more dimensions, so neither biases nor norm parameters.
        extra: A module (say, a probe) or mapping of tensors that directions cover as well, under
            names that start with `"extra."`. `"tensor"` scales every branch of a probe by itself,
            though it keeps them stacked; other modules say which tensors are such stacks by an
            attribute `stacked_tensors`, a tuple of names.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`.
        seed: Decides samples and directions.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        method: `"exact"` evaluates every point; `"adaptive"` evaluates few and interpolates, until
            the estimated error is below `tolerance`, or all points are evaluated.
        tolerance: Largest error of an interpolated loss, relative to the range of the surface. The
            accuracy of tokens and pixels, or of more than 2000 samples, is NaN where it was not
            evaluated, unless points that were left out are predicted to 0.02.
        batch_size: Samples at a time; by default as many as keep activations in the cache.
        checkpoint: A file for finished points: the same call goes on from there after a kill.
        executor: Where pieces of the plane are evaluated; by default in this process.

    Returns:
        Dataset with `loss (alpha, beta)`, its standard error over samples `loss_se` (NaN if `loss`
        gives one number per batch or weighs classes), `accuracy` (the share of a sample's positions
        that count which are right, then the mean over samples; NaN if targets are no classes, or
        the model returns several tensors of which none is called `logits` or `out`), `evaluated`,
        and the metrics.
        Non-finite values are kept, and counted in the attribute `n_non_finite`; what targets were
        understood as is in the attribute `targets`.

    Raises:
        ValueError: If an argument does not fit, targets ask for no loss, data change between
            passes, or nothing can move.
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
