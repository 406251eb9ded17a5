import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from nudging._measures.batch_agreement import (
    count_full_batches,
    describe_missing_batches,
    mean_gradient_of_full_batch,
    mean_pairwise_cosine,
)
from nudging._measures.batches import Measure, ObservedBatch, Request, measure_batches
from nudging._measures.numbers import Array, make_dataset, norms, without_padding
from resonance_toolkit import AtMost, Loss, check_whole

_MEANINGS = {
    "scale": "largest growth of the median activation norm from one block to the next",
    "reference": "median norm of the mean loss's gradient at the last block",
    "stability": "mean cosine of the batches' mean gradients at the middle block",
    "depth": "accuracy above that with frozen random blocks",
}
_FIRES_ABOVE = {"scale", "stability"}  # the others fire below their threshold


def audit(
    model: nn.Module,
    data: Any,
    blocks: str | Sequence[str] | None = None,
    *,
    accuracy: float | None = None,
    frozen_accuracy: float | None = None,
    scale: float = 50.0,
    reference: float = 1e-7,
    stability: float = 0.3,
    depth: float = 0.02,
    loss: Loss | None = None,
    n_batches: int = 8,
    batch_size: int = 128,
    seed: int = 0,
) -> xr.Dataset:
    """Check whether accuracy and alignment in a network are meaningful.

    There are four checks. Each one *fires* if its value is on the wrong side of its threshold:

    (a) `scale`: some block makes the activations many times larger;
    (b) `reference`: the gradient that credits are compared with is too small to measure;
    (c) `stability`: all batches have nearly the same mean gradient at the middle block;
    (d) `depth`: trained blocks are hardly better than frozen random ones.

    If a check fires, do not report accuracy and alignment without that caveat. A check that could
    not be measured has not passed: (a) needs two blocks, (c) needs `n_batches` full batches (1024
    samples by default), (d) needs both accuracies, and all need finite numbers. `reason` says what
    was missing. The gradient in (b) contains the factor 1/N of the mean over the N = `n_batches *
    batch_size` samples drawn.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        blocks: Names or patterns in order of depth, including the embedding; by default those of
            `resonance_toolkit.find_blocks`.
        accuracy: Accuracy of the trained network, between 0 and 1; needed for (d).
        frozen_accuracy: Accuracy of the same network trained with frozen random blocks, such as
            `depth_utility` measures; needed for (d).
        scale: (a) fires if the median norm of the activations grows by more than this factor from
            one block to the next.
        reference: (b) fires if the median norm of the gradient at the last block is below this.
        stability: (c) fires if the mean cosine of the batches' gradients is above this.
        depth: (d) fires if the difference of the two accuracies is below this.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        n_batches: Batches for (c), at least two.
        batch_size: Samples in each.
        seed: Determines which samples are drawn.

    Returns:
        Dataset over `check` with `value`, `threshold`, `verdict` ("passed", "fired" or "not
        measured"), `reason` (why it was not measured, else empty) and `meaning`. The attribute
        `verdict` summarises them.

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> data = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)  # all samples alike
        >>> checks = audit(model, data, "*", n_batches=2, batch_size=2)
        >>> checks["verdict"].sel(check=["stability", "depth"]).values.tolist()
        ['fired', 'not measured']
    """
    n_batches = check_whole("n_batches", n_batches, at_least=2)
    batch_size = check_whole("batch_size", batch_size)
    _check_accuracy("accuracy", accuracy)
    _check_accuracy("frozen_accuracy", frozen_accuracy)
    thresholds = {"scale": scale, "reference": reference, "stability": stability, "depth": depth}
    for name, threshold in thresholds.items():
        if not _is_number(threshold):
            raise ValueError(f"`{name}`: expected a finite number, got {threshold!r}")

    request = Request(
        verb="nudging.audit",
        model=model,
        data=data,
        blocks=blocks,
        credit=None,
        loss=loss,
        samples=AtMost(n_batches * batch_size),
        batch_size=batch_size,
        seed=seed,
    )
    measures: dict[str, Measure] = {
        "norms": _measure_norms,
        "gradients": partial(mean_gradient_of_full_batch, batch_size=batch_size),
    }
    values, _, attributes = measure_batches(request, measures)

    # Fewer batches would agree, or disagree, by chance.
    n_samples = int(attributes["n_samples"])
    n_full = count_full_batches(values["gradients"])
    shortage = describe_missing_batches(n_full, n_samples, n_batches, batch_size)
    if shortage:
        warnings.warn(f"stability is not measured: {shortage}", stacklevel=2)

    # NaN is what was not measured, and so has not passed.
    hidden_norms = np.median(values["norms"]["hidden"], -1)
    values_by_check = {
        "scale": _largest_growth(hidden_norms),
        "reference": float(np.median(values["norms"]["gradient"][-1])) / n_samples,
        "stability": np.nan if shortage else _agreement_in_the_middle(values["gradients"]),
        "depth": _gain(accuracy, frozen_accuracy),
    }

    reasons_for_nan = _explain_nan(len(hidden_norms), shortage)
    reasons = {
        name: reasons_for_nan[name] if np.isnan(value) else ""
        for name, value in values_by_check.items()
    }
    verdicts = {
        name: _judge(name, value, thresholds[name]) for name, value in values_by_check.items()
    }

    limits = [float(threshold) for threshold in thresholds.values()]
    return make_dataset(
        {
            "value": ("check", list(values_by_check.values()), "what was measured"),
            "threshold": ("check", limits, "where the check fires"),
            "verdict": ("check", list(verdicts.values()), "passed, fired or not measured"),
            "reason": ("check", list(reasons.values()), "why it was not measured"),
            "meaning": ("check", list(_MEANINGS.values()), "what the check looks at"),
        },
        {"check": (list(_MEANINGS), "check")},
        attributes | {"verdict": _summarise(verdicts, reasons)},
    )


def _check_accuracy(argument: str, accuracy: float | None) -> None:
    # Not `check_share`, which excludes 0: a network may well be always wrong.
    if accuracy is not None and not (_is_number(accuracy) and 0 <= accuracy <= 1):
        raise ValueError(f"`{argument}`: expected a share between 0 and 1, got {accuracy!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _measure_norms(batch: ObservedBatch) -> dict[str, Tensor]:
    state = batch.state
    return {
        "hidden": norms(without_padding(state, state.hidden)),
        "gradient": norms(without_padding(state, state.gradient())),
    }


def _largest_growth(hidden_norms: Array) -> float:
    if len(hidden_norms) == 1:
        return np.nan
    # After a block of zeros, any growth is infinite, and that of another zero is NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(hidden_norms[1:] / hidden_norms[:-1]))


def _agreement_in_the_middle(mean_gradients: Mapping[str, Array]) -> float:
    middle = (len(mean_gradients) - 1) // 2
    return float(mean_pairwise_cosine(mean_gradients)[middle])


def _gain(accuracy: float | None, frozen_accuracy: float | None) -> float:
    if accuracy is None or frozen_accuracy is None:
        return np.nan
    # Rounded, since 0.36 - 0.34 is to be two points and not a little less.
    return round(accuracy - frozen_accuracy, 12)


def _explain_nan(n_blocks: int, shortage: str) -> dict[str, str]:
    """Say, for each check, why it would have no value."""
    too_few_blocks = "expected two blocks or more, got one" if n_blocks == 1 else ""
    return {
        "scale": too_few_blocks or "activations are zero or not finite",
        "reference": "the gradient is not finite",
        "stability": shortage
        or "a batch's mean gradient at the middle block is zero or not finite",
        "depth": "expected `accuracy` and `frozen_accuracy`, see nudging.depth_utility",
    }


def _judge(name: str, value: float, threshold: float) -> str:
    if np.isnan(value):
        return "not measured"
    is_fired = value > threshold if name in _FIRES_ABOVE else value < threshold
    return "fired" if is_fired else "passed"


def _summarise(verdicts: dict[str, str], reasons: dict[str, str]) -> str:
    fired = [name for name, verdict in verdicts.items() if verdict == "fired"]
    missing_checks = [f"{name} ({reason})" for name, reason in reasons.items() if reason]

    summary = f"accuracy and alignment need a caveat: {', '.join(fired)}" if fired else "none fired"
    return f"{summary}; not measured: {', '.join(missing_checks)}" if missing_checks else summary
