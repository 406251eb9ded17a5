"""What needs no routing: every fixed depth, and the oracle."""

from typing import Any

import numpy as np
import xarray as xr

from probes._exit_analysis.leaving import Clusters, exits_of

_FIXED = {
    "fixed_cross_entropy": "cross-entropy if all leave here",
    "fixed_cross_entropy_se": "its standard error over samples",
    "fixed_perplexity": "perplexity if all leave here",
    "fixed_accuracy": "accuracy if all leave here",
    "fixed_accuracy_se": "its standard error over samples",
    "fixed_compute_with_head": "share of the operations run if all leave here, one head included",
}
_ORACLE = {
    "oracle_cross_entropy": "cross-entropy if each token left where it is least",
    "oracle_perplexity": "perplexity if each token left where its cross-entropy is least",
    "oracle_accuracy": "accuracy if each token left where it is right, if anywhere",
    "oracle_shallow": "share of tokens that would then leave early",
}


def baselines(record: xr.Dataset, right: np.ndarray, clusters: Clusters) -> dict[str, Any]:
    """Variables over `layer` and over `exit`."""
    losses = record["cross_entropy"].values
    loss = np.array([clusters.mean(row) for row in losses])
    hits = np.array([clusters.mean(row) for row in right])
    costs = (record["flops"] + record["head_flops"]).values
    whole = costs[-1] if costs[-1] else np.nan
    fixed = [*loss.T, np.exp(loss[:, 0]), *hits.T, costs / whole]
    opened = [[*early, -1] for early in exits_of(record).values()]
    oracle = np.array([_oracle(losses[o], right[o], clusters) for o in opened])
    return {
        **{k: ("layer", v, about(k, _FIXED[k])) for k, v in zip(_FIXED, fixed, strict=True)},
        **{k: ("exit", v, about(k, _ORACLE[k])) for k, v in zip(_ORACLE, oracle.T, strict=True)},
    }


def about(name: str, text: str) -> dict[str, str]:
    """What a variable's attributes say."""
    units = {"units": "nat"} if "cross_entropy" in name or name.startswith("gain") else {}
    return {"long_name": text, **units}


def _oracle(losses: np.ndarray, right: np.ndarray, clusters: Clusters) -> tuple[float, ...]:
    mean, _ = clusters.mean(losses.min(0))
    shallow = (losses[:-1].min(0) <= losses[-1]).mean()
    return mean, float(np.exp(mean)), float(right.max(0).mean()), float(shallow)
