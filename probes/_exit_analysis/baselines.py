"""What needs no routing: every fixed depth, and the oracle."""

from typing import Any

import numpy as np
import xarray as xr

from probes._exit_analysis.leaving import Clusters, exit_sets

_FIXED_DEPTH = {
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


def baseline_variables(
    record: xr.Dataset, is_correct: np.ndarray, clusters: Clusters
) -> dict[str, Any]:
    """Return Dataset variables over `layer` (fixed depths) and over `exit` (the oracle).

    Args:
        record: Made by `record_exits`.
        is_correct: 1 where a prediction is the target, else 0, `(layer, token)`.
        clusters: The record's tokens by sample.
    """
    losses = record["cross_entropy"].values
    fixed_values = _fixed_depth_values(record, losses, is_correct, clusters)
    oracle_rows = []
    for open_exits in exit_sets(record).values():
        layers = [*open_exits, -1]
        oracle_rows.append(_oracle_values(losses[layers], is_correct[layers], clusters))

    variables: dict[str, Any] = {}
    for (name, text), values in zip(_FIXED_DEPTH.items(), fixed_values, strict=True):
        variables[name] = ("layer", values, variable_attributes(name, text))
    for (name, text), column in zip(_ORACLE.items(), np.array(oracle_rows).T, strict=True):
        variables[name] = ("exit", column, variable_attributes(name, text))
    return variables


def variable_attributes(name: str, text: str) -> dict[str, str]:
    """Return the attributes of a variable: cross-entropies and their differences are in nat."""
    is_in_nat = "cross_entropy" in name or name.startswith("gain")
    return {"long_name": text} | ({"units": "nat"} if is_in_nat else {})


def _fixed_depth_values(
    record: xr.Dataset, losses: np.ndarray, is_correct: np.ndarray, clusters: Clusters
) -> list[np.ndarray]:
    """Return the values of `_FIXED_DEPTH`, in its order, `(layer,)` each."""
    loss, loss_se = np.array([clusters.mean(row) for row in losses]).T
    accuracy, accuracy_se = np.array([clusters.mean(row) for row in is_correct]).T

    costs = (record["flops"] + record["head_flops"]).values
    full_cost = costs[-1] if costs[-1] else np.nan
    return [loss, loss_se, np.exp(loss), accuracy, accuracy_se, costs / full_cost]


def _oracle_values(
    losses: np.ndarray, is_correct: np.ndarray, clusters: Clusters
) -> tuple[float, ...]:
    """Return the values of `_ORACLE`, in its order, from `(layer, token)`, the last layer last."""
    mean_loss, _ = clusters.mean(losses.min(0))
    accuracy = float(is_correct.max(0).mean())
    shallow = float((losses[:-1].min(0) <= losses[-1]).mean())
    return mean_loss, float(np.exp(mean_loss)), accuracy, shallow
