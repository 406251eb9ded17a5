"""Records of exits with known chances, for tests of what is derived from them."""

import numpy as np
import xarray as xr


def make_record(confidence, loss, prediction, target, sample, *, flops=None, head_flops=None):
    """A record with the shape that `probes.record_exits` gives, one measure."""
    layers, tokens = loss.shape
    body = np.arange(1.0, layers + 1) if flops is None else flops
    return xr.Dataset(
        {
            "cross_entropy": (("layer", "token"), loss),
            "prediction": (("layer", "token"), prediction),
            "confidence": (("measure", "layer", "token"), confidence[None]),
            "flops": ("layer", body),
            "head_flops": ("layer", np.zeros(layers) if head_flops is None else head_flops),
        },
        coords={
            "layer": [f"h.{i}" for i in range(layers)],
            "measure": ["max softmax"],
            "token": np.arange(tokens),
            "sample": ("token", sample),
            "position": ("token", np.zeros(tokens, dtype=int)),
            "target": ("token", target),
            "depth": ("layer", np.arange(1, layers + 1) / layers),
        },
    )


def sure_share(shallow, layers=3, exit_at=0, body=1.0, head=0.0, n=1000):
    """A given share of tokens is sure at one exit, all else is the same."""
    confidence, zeros = np.zeros((layers, n)), np.zeros((layers, n))
    confidence[exit_at, : round(shallow * n)] = 1
    whole = zeros.astype(int)
    costs = {"flops": body * np.arange(1.0, layers + 1), "head_flops": np.full(layers, head)}
    return make_record(confidence, zeros, whole, whole[0], np.arange(n), **costs)


def uniform_confidence(rng, samples, tokens=1, shared=0.0):
    """Confidence u is uniform, and the exit disagrees with the model with chance (1 - u) / 2.

    So the expected disagreement at a threshold is (1 - tau)^2 / 4. Tokens of a sample are alike:
    with chance `shared` they have the confidence and fate of the first.
    """
    u = rng.random((samples, tokens))
    wrong = rng.random((samples, tokens)) < (1 - u) / 2
    same = rng.random((samples, tokens)) < shared
    u, wrong = np.where(same, u[:, :1], u), np.where(same, wrong[:, :1], wrong)
    n = samples * tokens
    confidence = np.stack([u.ravel(), np.ones(n)])
    prediction = np.stack([wrong.ravel().astype(int), np.zeros(n, dtype=int)])
    # The cross-entropy grows by 1 where the exit disagrees, and falls by 0.1 where it agrees.
    loss = np.stack([np.where(wrong, 2.0, 0.9).ravel(), np.ones(n)])
    target, sample = np.zeros(n, dtype=int), np.repeat(np.arange(samples), tokens)
    return make_record(confidence, loss, prediction, target, sample)
