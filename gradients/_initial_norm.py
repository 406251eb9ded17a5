import math
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from gradients._checks import check_unsharded
from gradients._dataset import layer_coordinate
from gradients._recorders.inner_products import add_optional, inner_products
from gradients._recorders.layers import parameters_by_layer
from resonance_toolkit import (
    AtMost,
    Batches,
    ClassLoss,
    DefaultLoss,
    Loss,
    call_loss,
    call_model,
    check_module,
    check_no_nan,
    check_whole,
    count_branch_weights,
    count_samples,
    default_loss,
    describe_targets,
    devices_of,
    fit_class_loss,
    has_class_weights,
    leave_out_uncounted,
    logits_of,
    name_of,
    preserving,
    provenance,
    seed_generators,
    take,
    to_host,
    track,
)


def initial_norm(
    model: nn.Module,
    data: Any,
    branches: nn.Module | int | None = None,
    *,
    branch_tensors: int | None = None,
    loss: Loss | None = None,
    samples: int | None = AtMost(500),
    batch_size: int = 100,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the norm of the main loss's gradient, with and without counting the branches.

    Branches do not change a model's output, so the main loss has no gradient in them: the norm over
    backbone and branches equals that over the backbone. Only the root mean square per parameter
    falls, by the dilution factor `sqrt(backbone / everything)`, because more parameters are
    counted. If all tensors of a random direction have the same norm, its part on the backbone is
    diluted by another factor, in which tensors are counted instead of parameters:
    `sqrt(T / (T + M N))` for a backbone of T tensors with N bias-free branches at each of M
    layers. Table 4 of the asymmetric-training paper reports reductions of about that size.

    Args:
        model: The backbone, before training, in the mode to be measured; not sharded. Left as it
            was.
        data: `(inputs, targets)`, where inputs are a tensor, a tuple (positional arguments) or a
            mapping (keywords); a mapping with `labels`; or a source of these: a Dataset, a
            DataLoader, a list of batches.
        branches: The branches: a module, such as a probe, whose weights are all counted, frozen or
            not, including static branches; or the number of their weights.
        branch_tensors: If `branches` is a number, how many tensors these weights are.
        loss: Maps `(outputs, targets)` to the mean loss of one batch. If None, the targets decide:
            cross-entropy for classes of samples or of positions (tokens, pixels: the mean over the
            positions of a sample that count, then over samples), sigmoid losses for zeros and
            ones, soft cross-entropy for distributions. Targets of -100 are then ignored, and so
            are samples that have no others; real-valued targets need a loss.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples in a forward pass.
        seed: Determines which samples are drawn, and what dropout draws.

    Returns:
        Dataset with `gradient_norm (layer)`; `norm_backbone`, `norm_everything`: over the model,
        and over model and branches; `rms_backbone`, `rms_everything`: the same divided by the root
        of the numbers of parameters, `n_backbone` and `n_everything`; `dilution`: the factor
        between the two; `reduction`: its effect in percent; `n_tensors_backbone`,
        `n_tensors_everything`, `dilution_by_tensor`, `reduction_by_tensor`: the same with tensors
        counted instead of parameters (NaN if the number of tensors is not known); `loss`.
        Attributes: `loss`, its name; `targets`, how they were understood; `n_samples`.

    Raises:
        ValueError: If there is no default loss for the targets, inputs are NaN, `branches` is
            neither a module nor a number of weights, the loss is not a scalar that depends on the
            model, or the model is frozen or sharded.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data = torch.ones(4, 1), model(torch.ones(4, 1)).detach() - 1
        >>> norms = initial_norm(model, data, 3, loss=F.mse_loss, samples=None)
        >>> norms["norm_everything"].item(), norms["rms_everything"].item()  # 2 and 2 / sqrt(1 + 3)
        (2.0, 1.0)
    """
    check_module(model)
    check_unsharded(model)
    branch_parameters: list[Tensor] = (
        list(branches.parameters()) if isinstance(branches, nn.Module) else []
    )
    n_branch_weights, n_branch_tensors = _count_branch_weights(branches, branch_tensors)
    by_layer = parameters_by_layer(model)
    inputs = [p for p in [*by_layer.parameters, *branch_parameters] if p.requires_grad]
    if not inputs:
        raise ValueError("`model`: expected parameters that require gradients, got none")

    batches = take(
        data, samples, seed, model=model, batch_size=batch_size, has_loss=loss is not None
    )
    batch_loss = _MeanLoss(loss)
    if loss is None:
        batches = leave_out_uncounted(batches)
        batch_loss = _MeanLoss(default_loss([targets for _, targets in batches]))
    else:
        batches, loss = _fit_to_batches(loss, batches)
        batch_loss = _MeanLoss(loss)

    with preserving(model):
        seed_generators(seed, devices_of(model))
        mean_loss, gradients = _mean_gradients(model, batch_loss, batches, inputs)
    if math.isnan(mean_loss):
        check_no_nan(batches)

    # Branches that the loss does not reach have no gradient, and add nothing.
    reached = {p: gradient for p, gradient in gradients.items() if gradient is not None}
    lengths = to_host([inner_products([gradient]) for gradient in reached.values()])
    squares = {p: length.item() for p, length in zip(reached, lengths, strict=True)}
    backbone_squares = [squares.get(p, 0.0) for p in by_layer.parameters]
    norm_backbone = math.sqrt(sum(backbone_squares))
    norm_everything = math.sqrt(sum(squares.values()))

    # Over more parameters the same norm has a smaller root mean square:
    # rms_everything / rms_backbone = sqrt(n_backbone / n_everything).
    n_backbone = sum(by_layer.count_by_layer())
    n_everything = n_backbone + n_branch_weights
    dilution = math.sqrt(n_backbone / n_everything)

    # The same of numbers of tensors.
    n_tensors_backbone = len(by_layer.parameters)
    n_tensors_everything = n_tensors_backbone + n_branch_tensors
    dilution_by_tensor = math.sqrt(n_tensors_backbone / n_tensors_everything)
    rms_backbone = norm_backbone / math.sqrt(n_backbone)
    rms_everything = norm_everything / math.sqrt(n_everything)

    numbers = {
        "norm_backbone": (norm_backbone, "gradient norm over the backbone"),
        "norm_everything": (norm_everything, "gradient norm over backbone and branches"),
        "rms_backbone": (rms_backbone, "root mean square over the backbone"),
        "rms_everything": (rms_everything, "root mean square over everything"),
        "dilution": (dilution, "dilution factor"),
        "reduction": (100 * (dilution - 1), "change by dilution"),
        "n_backbone": (n_backbone, "parameters of the backbone"),
        "n_everything": (n_everything, "parameters of backbone and branches"),
        "dilution_by_tensor": (dilution_by_tensor, "dilution factor, by tensors"),
        "reduction_by_tensor": (100 * (dilution_by_tensor - 1), "change by dilution, by tensors"),
        "n_tensors_backbone": (n_tensors_backbone, "tensors of the backbone"),
        "n_tensors_everything": (n_tensors_everything, "tensors of backbone and branches"),
        "loss": (mean_loss, "mean loss"),
    }
    result = xr.Dataset(
        {name: ((), number, {"long_name": text}) for name, (number, text) in numbers.items()}
    )
    result["reduction"].attrs["units"] = "%"
    result["reduction_by_tensor"].attrs["units"] = "%"

    by_owner = np.sqrt(np.bincount(by_layer.owners, backbone_squares, len(by_layer.layers)))
    result["gradient_norm"] = ("layer", by_owner, {"long_name": "gradient norm of the main loss"})

    n_samples = sum(count_samples(x) for x, _ in batches)
    attributes = provenance(
        "gradients.initial_norm",
        model,
        loss=batch_loss.name,
        targets=describe_targets(batch_loss.targets, *batches[0]),
        n_samples=n_samples,
        seed=seed,
    )
    return result.assign_coords(layer=layer_coordinate(by_layer.layers)).assign_attrs(attributes)


def _fit_to_batches(loss: Any, batches: Batches) -> tuple[Batches, Any]:
    """Have the mean of batch means be the mean over all, where torch's loss leaves targets out.

    Torch's mean is over the targets that count, or over their class weights: a batch with few of
    them would count as much as one with many.
    """
    fitted_loss = fit_class_loss(loss, [targets for _, targets in batches])
    if not isinstance(fitted_loss, ClassLoss):
        return batches, loss
    if not (fitted_loss.has_ignored or has_class_weights(loss)):
        return batches, loss

    counted_batches = leave_out_uncounted(batches, fitted_loss.ignored)
    fitted_loss = fit_class_loss(loss, [targets for _, targets in counted_batches])
    return counted_batches, _BatchMean(fitted_loss, name_of(loss))


class _BatchMean:
    """The mean of a loss that gives one value per sample, under the name of the user's loss."""

    def __init__(self, loss: Any, name: str) -> None:
        self._loss = loss
        self.__name__ = name

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        values: Tensor = call_loss(self._loss, outputs, targets)
        return values.mean()


class _MeanLoss:
    """The mean loss of a batch: the user's own, or a default one's.

    `targets` says what the targets were understood as, once a batch was seen.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.name = name_of(loss)
        self.targets = "given to the loss"

    def __call__(self, outputs: Any, targets: Any) -> Any:
        if not isinstance(self._loss, DefaultLoss):
            return call_loss(self._loss, outputs, targets)

        meaning = self._loss.settle_meaning(outputs, targets)
        self.targets = meaning
        self.name = name_of(replace(self._loss, meaning=meaning))
        values = self._loss(outputs, targets)

        # One class per sample: torch's own mean, which rounds in an order of its own.
        if meaning == "classes" and logits_of(outputs).dim() == 2 and values.shape == targets.shape:
            return F.cross_entropy(logits_of(outputs), targets.to(values.device).long())
        return values.mean()


def _mean_gradients(
    model: nn.Module, loss: _MeanLoss, batches: Batches, inputs: list[Tensor]
) -> tuple[float, dict[Tensor, Tensor | None]]:
    """Return the mean loss over all samples, and its gradient by tensor."""
    n_samples = sum(count_samples(x) for x, _ in batches)
    batch_losses: list[Tensor] = []
    gradients: dict[Tensor, Tensor | None] = dict.fromkeys(inputs)

    for x, y in track(batches, "initial norm", unit="batch"):
        # Weighted by batch size: the last batch is often smaller than the others.
        value = _check_scalar(loss(call_model(model, x), y)) * (count_samples(x) / n_samples)
        batch_losses.append(value.detach())

        parts = torch.autograd.grad(value, inputs, allow_unused=True)
        for parameter, part in zip(inputs, parts, strict=True):
            gradients[parameter] = add_optional(gradients[parameter], part)

    # In one piece, and added up in the order of the batches.
    mean_loss = sum((loss.item() for loss in to_host(batch_losses)), 0.0)
    return mean_loss, gradients


def _count_branch_weights(
    branches: nn.Module | int | None, branch_tensors: int | None
) -> tuple[int, float]:
    """Count the weights of branches, and the tensors that they are; NaN where nobody says."""
    if branches is None or isinstance(branches, nn.Module):
        if branch_tensors is not None:
            raise ValueError(
                "`branch_tensors`: goes with a number of weights as `branches`, which is a module "
                "(whose tensors are counted) or None"
            )
        if branches is None:
            return 0, 0
        count = count_branch_weights(branches)
        return count.n_parameters, count.n_tensors

    is_whole = isinstance(branches, Integral) and not isinstance(branches, bool)
    if not is_whole or branches < 0:
        raise ValueError(
            f"`branches`: expected a module, a number of weights or None, got {branches!r}"
        )

    if branch_tensors is None:
        return int(branches), math.nan if branches else 0
    return int(branches), check_whole("branch_tensors", branch_tensors, at_least=0)


def _check_scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"`loss`: expected one number that depends on the model, got {kind}")
    return value.reshape(())
