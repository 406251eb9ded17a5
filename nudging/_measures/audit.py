import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from nudging._measures.batches import check_whole, observing
from nudging._measures.numbers import attributes, dataset, joined, norms
from nudging._measures.stability import lacking, mean_gradients, pairwise_cosine
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost

_CHECKS = {
    "scale": "largest growth of the median activation norm from one block to the next",
    "reference": "median norm of the mean loss's gradient at the last block",
    "stability": "mean cosine of the batches' mean gradients at the middle block",
    "depth": "accuracy above that with frozen random blocks",
}
_FIRES_ABOVE = {"scale", "stability"}
_UNDEFINED = {
    "scale": "activations are zero or not finite",
    "reference": "the gradient is not finite",
    "stability": "a batch's mean gradient at the middle block is zero or not finite",
}


def audit(
    model: nn.Module,
    data: Any,
    blocks: str | Sequence[str],
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
    """Check whether accuracy and alignment of a network mean what they seem to.

    Four checks, each of which fires on the wrong side of its threshold:

    (a) `scale`: some block makes the activations many times larger;
    (b) `reference`: the gradient that credits are compared with is too small to measure;
    (c) `stability`: all batches have nearly the same mean gradient at the middle block;
    (d) `depth`: trained blocks are hardly better than frozen random ones.

    Once one fires, accuracy and alignment are to be withdrawn or given with that caveat. What was
    not measured has not passed: (a) needs two blocks, (c) `n_batches` full batches (1024 samples by
    default), (d) both accuracies, and all of them finite numbers; `reason` says what was missing.
    The gradient in (b) has the 1/N of the mean over the samples drawn, N = `n_batches *
    batch_size`.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        blocks: Names or patterns, the embedding included, in the order of depth.
        accuracy: Of the trained network, between 0 and 1; needed by (d).
        frozen_accuracy: Of the same network trained with frozen random blocks, as by
            `depth_utility`; needed by (d).
        scale: (a) fires above.
        reference: (b) fires below.
        stability: (c) fires above.
        depth: (d) fires below.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        n_batches: Batches for (c), at least two.
        batch_size: Samples in each.
        seed: Decides which samples.

    Returns:
        Dataset over `check` with `value`, `threshold`, `verdict` ("passed", "fired" or "not
        measured"), `reason` (why it was not measured, else empty) and `meaning`; the attribute
        `verdict` sums up.

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is of the wrong kind.
    """
    check_whole("n_batches", n_batches, 2)
    check_whole("batch_size", batch_size, 1)
    for name, share in {"accuracy": accuracy, "frozen_accuracy": frozen_accuracy}.items():
        if share is not None and not 0 <= share <= 1:
            raise ValueError(f"`{name}`: expected a share between 0 and 1, got {share!r}")
    limits = {"scale": scale, "reference": reference, "stability": stability, "depth": depth}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not np.isfinite(limit):
            raise ValueError(f"`{name}`: expected a finite number, got {limit!r}")
    with observing(
        model, data, blocks, None, loss=loss, samples=AtMost(n_batches * batch_size),
        batch_size=batch_size, seed=seed, label="audit",
    ) as batches:  # fmt: skip
        means, parts = [], []
        for seen in batches:
            parts.append({"hidden": norms(seen.state.hidden), "grad": norms(seen.state.gradient())})
            if len(seen.state) == batch_size:
                means.append(mean_gradients(seen.state.gradient()))
            last = seen
    hidden, grad = joined(parts).values()
    found = dict.fromkeys(_CHECKS, np.nan)
    sizes = np.median(hidden, -1)
    if len(sizes) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            found["scale"] = float(np.max(sizes[1:] / sizes[:-1]))
    found["reference"] = float(np.median(grad[-1])) / grad.shape[-1]
    lack = lacking(grad.shape[-1], n_batches, batch_size)
    if lack:
        warnings.warn(f"stability is not measured: {lack}", stacklevel=2)
    else:
        found["stability"] = float(pairwise_cosine(means)[(len(sizes) - 1) // 2])
    if accuracy is not None and frozen_accuracy is not None:
        found["depth"] = round(accuracy - frozen_accuracy, 12)  # 0.36 - 0.34 is two points
    verdicts = [_verdict(name, value, limits[name]) for name, value in found.items()]
    known = {
        "scale": "expected two blocks or more, got one" if len(sizes) == 1 else _UNDEFINED["scale"],
        "reference": _UNDEFINED["reference"],
        "stability": lack or _UNDEFINED["stability"],
        "depth": "expected `accuracy` and `frozen_accuracy`, see nudging.depth_utility",
    }
    reasons = {name: known[name] if np.isnan(value) else "" for name, value in found.items()}
    attrs = attributes("nudging.audit", model, None, last, seed=seed, n_samples=grad.shape[-1])
    return dataset(
        {
            "value": ("check", list(found.values()), "what was measured"),
            "threshold": ("check", [float(v) for v in limits.values()], "where the check fires"),
            "verdict": ("check", verdicts, "passed, fired or not measured"),
            "reason": ("check", list(reasons.values()), "why it was not measured"),
            "meaning": ("check", list(_CHECKS.values()), "what the check looks at"),
        },
        {"check": (list(_CHECKS), "check")},
        attrs | {"verdict": _summary(dict(zip(_CHECKS, verdicts, strict=True)), reasons)},
    )


def _verdict(name: str, value: float, limit: float) -> str:
    if np.isnan(value):
        return "not measured"
    fired = value > limit if name in _FIRES_ABOVE else value < limit
    return "fired" if fired else "passed"


def _summary(verdicts: dict[str, str], reasons: dict[str, str]) -> str:
    fired = [name for name, verdict in verdicts.items() if verdict == "fired"]
    missing = [f"{name} ({reason})" for name, reason in reasons.items() if reason]
    words = f"accuracy and alignment need a caveat: {', '.join(fired)}" if fired else "none fired"
    return f"{words}; not measured: {', '.join(missing)}" if missing else words
