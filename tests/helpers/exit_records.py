"""Records of exits with known chances, for tests of what is derived from them."""

import numpy as np
import xarray as xr


def make_record(confidence, loss, prediction, target, sample, *, flops=None, head_flops=None):
    """A record with the shape that `probes.record_exits` gives, one measure."""
    n_layers, n_tokens = loss.shape
    if flops is None:
        flops = np.arange(1.0, n_layers + 1)
    if head_flops is None:
        head_flops = np.zeros(n_layers)

    return xr.Dataset(
        {
            "cross_entropy": (("layer", "token"), loss),
            "prediction": (("layer", "token"), prediction),
            "confidence": (("measure", "layer", "token"), confidence[None]),
            "flops": ("layer", flops),
            "head_flops": ("layer", head_flops),
        },
        coords={
            "layer": [f"h.{i}" for i in range(n_layers)],
            "measure": ["max softmax"],
            "token": np.arange(n_tokens),
            "sample": ("token", sample),
            "position": ("token", np.zeros(n_tokens, dtype=int)),
            "target": ("token", target),
            "depth": ("layer", np.arange(1, n_layers + 1) / n_layers),
        },
    )


def sure_share(shallow, layers=3, exit_at=0, body=1.0, head=0.0, n=1000):
    """A given share of tokens is sure at one exit, all else is the same."""
    confidence = np.zeros((layers, n))
    confidence[exit_at, : round(shallow * n)] = 1

    loss = np.zeros((layers, n))
    prediction = np.zeros((layers, n), dtype=int)
    return make_record(
        confidence,
        loss,
        prediction,
        target=prediction[0],
        sample=np.arange(n),
        flops=body * np.arange(1.0, layers + 1),
        head_flops=np.full(layers, head),
    )


def uniform_confidence(rng, samples, tokens=1, shared=0.0):
    """Confidence u is uniform, and the exit disagrees with the model with chance (1 - u) / 2.

    So the expected disagreement at a threshold is (1 - tau)^2 / 4. Tokens of a sample are alike:
    with chance `shared` they have the confidence and fate of the first.
    """
    u = rng.random((samples, tokens))
    disagrees = rng.random((samples, tokens)) < (1 - u) / 2

    is_like_first = rng.random((samples, tokens)) < shared
    u = np.where(is_like_first, u[:, :1], u)
    disagrees = np.where(is_like_first, disagrees[:, :1], disagrees)

    n = samples * tokens
    confidence = np.stack([u.ravel(), np.ones(n)])
    prediction = np.stack([disagrees.ravel().astype(int), np.zeros(n, dtype=int)])

    # The cross-entropy grows by 1 where the exit disagrees, and falls by 0.1 where it agrees.
    loss = np.stack([np.where(disagrees, 2.0, 0.9).ravel(), np.ones(n)])

    target = np.zeros(n, dtype=int)
    sample = np.repeat(np.arange(samples), tokens)
    return make_record(confidence, loss, prediction, target, sample)
