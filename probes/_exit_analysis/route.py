from itertools import product

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from tqdm import tqdm

from probes._exit_analysis.baselines import about, baselines
from probes._exit_analysis.leaving import (
    Clusters,
    check_record,
    check_thresholds,
    exits_of,
    leave,
    relative_costs,
)
from resonance_toolkit import provenance

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01)

_ROUTED = {
    "cross_entropy": "cross-entropy under routing",
    "cross_entropy_se": "its standard error over samples",
    "perplexity": "perplexity under routing",
    "perplexity_se": "its standard error over samples",
    "accuracy": "accuracy under routing",
    "accuracy_se": "its standard error over samples",
    "agreement": "share of tokens predicted as by the whole model",
    "shallow": "share of tokens that leave early",
    "compute": "share of the layers run",
    "compute_with_head": "share of the operations run, heads included",
    "random_cross_entropy": "cross-entropy if as many tokens left at random",
    "random_perplexity": "perplexity if as many tokens left at random",
    "random_accuracy": "accuracy if as many tokens left at random",
    "gain": "cross-entropy saved against leaving at random",
    "gain_se": "its standard error over samples",
}


def route_exits(record: xr.Dataset, *, thresholds: ArrayLike = THRESHOLDS) -> xr.Dataset:
    """What early exits would give and save, for every threshold, measure and exit.

    A token leaves at the first opened exit whose confidence is at least the threshold: at 0 all
    leave at the first, above 1 none leaves early. Beside every routed row stand what needs no
    routing: each fixed depth, leaving at random at the same rates, and the oracle.

    Args:
        record: Made by `record_exits`.
        thresholds: Where to evaluate, shape `(threshold,)`.

    Returns:
        Dataset over `threshold`, `measure` and `exit`: an early layer opened alone, or `"any"`, all
        of them. With the mean over tokens of the cross-entropy of the path taken, and its
        exponential:

        - `cross_entropy`, `perplexity`, `accuracy`, `agreement` with the whole model's prediction,
          the standard errors `..._se` over samples, whose tokens are not independent;
        - `shallow`, the share s that leaves early; `left`, the share for each `layer`; `compute`,
          1 - s (1 - e / L) for one exit at depth e / L; `compute_with_head`, with every head that
          is asked on the way, from counted operations;
        - `random_cross_entropy` = sum over layers of share * `fixed_cross_entropy`, its exponential
          and `random_accuracy` likewise; `gain`, what routing saves against that: where it is not
          well above `gain_se`, a coin would do;
        - `fixed_... (layer)`: all tokens leave there;
        - `oracle_... (exit)`: each token leaves where its cross-entropy is least; for
          `oracle_accuracy`, where it is right, if anywhere.

        NaN where a measure is undefined at all opened exits (the cosine at a layer that changes
        shapes); where it is undefined at some, nobody leaves there.

    Raises:
        ValueError: If a threshold is NaN or there is none.

    Examples:
        >>> import torch
        >>> from probes import record_exits
        >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        >>> data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(model, data, ["0", "1"])
        >>> routes = route_exits(record, thresholds=[0, 1.01])
        >>> routes["shallow"].sel(measure="margin", exit="0").values
        array([1., 0.])
    """
    check_record(record)
    taus = check_thresholds("thresholds", thresholds)
    exits, clusters = exits_of(record), Clusters.of(record)
    measures = [str(m) for m in record["measure"].values]
    right = (record["prediction"] == record["target"]).transpose("layer", "token").values
    tokens = _Tokens(
        record["cross_entropy"].values,
        right.astype(float),
        (record["prediction"] == record["prediction"][-1]).values,
        record["depth"].values,
        clusters,
    )
    shape = (len(taus), len(measures), len(exits))
    routed = {name: np.full(shape, np.nan) for name in _ROUTED}
    left_at = np.full((*shape, record.sizes["layer"]), np.nan)
    rows = list(product(enumerate(measures), enumerate(exits.values())))
    for (m, measure), (e, opened) in tqdm(rows, unit="exit", disable=None, leave=False):
        confidence = record["confidence"].values[m]
        if np.isnan(confidence[opened]).all():
            continue
        costs = relative_costs(record, measure, opened)
        for t, tau in enumerate(taus):
            left = leave(confidence, tau, opened)
            left_at[t, m, e] = np.bincount(left, minlength=len(confidence)) / len(left)
            for name, value in tokens.routed(left, left_at[t, m, e], costs).items():
                routed[name][t, m, e] = value
    dims = ("threshold", "measure", "exit")
    return xr.Dataset(
        {
            **{name: (dims, routed[name], about(name, text)) for name, text in _ROUTED.items()},
            "left": ((*dims, "layer"), left_at, {"long_name": "share of tokens that leave here"}),
            **baselines(record, tokens.right, clusters),
        },
        coords={
            "threshold": ("threshold", taus, {"long_name": "least confidence to leave"}),
            "measure": record["measure"],
            "exit": ("exit", list(exits), {"long_name": "exit opened, or any of them"}),
            "layer": record["layer"],
            "depth": record["depth"],
        },
        attrs=record.attrs | provenance("probes.route_exits", n_tokens=record.sizes["token"]),
    )


class _Tokens:
    """All tokens `(layer, token)`, and what they give when each leaves at some layer."""

    def __init__(
        self,
        loss: np.ndarray,
        right: np.ndarray,
        agrees: np.ndarray,
        depth: np.ndarray,
        clusters: Clusters,
    ) -> None:
        self.loss, self.right, self.agrees, self.depth = loss, right, agrees, depth
        self.clusters = clusters
        self.means = np.array([clusters.mean(row)[0] for row in loss])
        self.hits = right.mean(1)
        self.token = np.arange(loss.shape[1])

    def routed(self, left: np.ndarray, share: np.ndarray, costs: np.ndarray) -> dict[str, float]:
        """One row of the result: tokens leave at `left (token,)`."""
        taken = self.loss[left, self.token]
        loss, loss_se = self.clusters.mean(taken)
        accuracy, accuracy_se = self.clusters.mean(self.right[left, self.token])
        at_random = float(share @ self.means)
        # To first order a token moves the gain by its own loss, the rates, and the fixed means.
        _, gain_se = self.clusters.mean(self.means[left] + share @ self.loss - taken)
        return {
            "cross_entropy": loss,
            "cross_entropy_se": loss_se,
            "perplexity": np.exp(loss),
            "perplexity_se": np.exp(loss) * loss_se,
            "accuracy": accuracy,
            "accuracy_se": accuracy_se,
            "agreement": self.agrees[left, self.token].mean(),
            "shallow": share[:-1].sum(),
            "compute": share @ self.depth,
            "compute_with_head": share @ costs,
            "random_cross_entropy": at_random,
            "random_perplexity": np.exp(at_random),
            "random_accuracy": float(share @ self.hits),
            "gain": at_random - loss,
            "gain_se": gain_se,
        }
