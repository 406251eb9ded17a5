from itertools import product

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from probes._exit_analysis.baselines import baseline_variables, variable_attributes
from probes._exit_analysis.leaving import (
    DEFAULT_THRESHOLDS,
    Clusters,
    check_record,
    check_thresholds,
    exit_coordinate,
    exit_layer_of_tokens,
    exit_sets,
    relative_costs,
)
from resonance_toolkit import provenance, track

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


def route_exits(record: xr.Dataset, *, thresholds: ArrayLike = DEFAULT_THRESHOLDS) -> xr.Dataset:
    """Compute what early exits would cost and save, for every threshold, measure and exit.

    A token leaves at the first opened exit whose confidence is at least the threshold. At 0 all
    tokens leave at the first exit; above 1 none leaves early. Each result comes with three
    references that do not use the confidence: each fixed depth, random exits at the same rates, and
    an oracle.

    Args:
        record: Made by `record_exits`.
        thresholds: The thresholds to evaluate, shape `(threshold,)`.

    Returns:
        Dataset over `threshold`, `measure` and `exit`. An exit is one early layer opened alone, or
        `"any"`, which opens all of them. The variables are

        - `cross_entropy`, the mean over tokens at the exits that they take; `perplexity`, its
          exponential; `accuracy`; `agreement` with the whole model's prediction; and the standard
          errors `..._se`, over samples, because the tokens of a sample are not independent;
        - `shallow`, the share s that leaves early; `left`, the share for each `layer`; `compute`,
          1 - s (1 - e / L) for one exit at depth e / L; `compute_with_head`, from counted
          operations, with every head that is evaluated on the way;
        - `random_cross_entropy` = sum over layers of share * `fixed_cross_entropy`, with its
          exponential and `random_accuracy` likewise; `gain`, how much lower the cross-entropy is
          with routing. If `gain` is not well above `gain_se`, random exits would do as well;
        - `fixed_... (layer)`: all tokens leave at that layer;
        - `oracle_... (exit)`: each token leaves where its cross-entropy is lowest; for
          `oracle_accuracy`, where its prediction is right, if anywhere.

        Values are NaN if a measure is undefined at all opened exits (such as the cosine at a layer
        that changes shapes). If it is undefined at some of them, no token leaves there.

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

    tokens = _RoutedTokens(record)
    measures = [str(measure) for measure in record["measure"].values]
    sets_of_exits = list(exit_sets(record).values())
    shape = (len(taus), len(measures), len(sets_of_exits))
    routed = {name: np.full(shape, np.nan) for name in _ROUTED}
    shares = np.full((*shape, record.sizes["layer"]), np.nan)

    pairs = list(product(enumerate(measures), enumerate(sets_of_exits)))
    for (m, measure), (e, open_exits) in track(pairs, "routes", unit="exit"):
        confidence = record["confidence"].values[m]
        # Undefined at all open exits: the row stays NaN. Where it is undefined at some, NaN is
        # below every threshold, so that nobody leaves there.
        if np.isnan(confidence[open_exits]).all():
            continue

        costs = relative_costs(record, measure, open_exits)
        for t, tau in enumerate(taus):
            exit_layer = exit_layer_of_tokens(confidence, tau, open_exits)
            counts = np.bincount(exit_layer, minlength=len(confidence))
            shares[t, m, e] = counts / len(exit_layer)
            for name, value in tokens.evaluate_routing(exit_layer, shares[t, m, e], costs).items():
                routed[name][t, m, e] = value

    dims = ("threshold", "measure", "exit")
    variables = {
        name: (dims, routed[name], variable_attributes(name, text))
        for name, text in _ROUTED.items()
    }
    return xr.Dataset(
        {
            **variables,
            "left": ((*dims, "layer"), shares, {"long_name": "share of tokens that leave here"}),
            **baseline_variables(record, tokens.is_correct, tokens.clusters),
        },
        coords={
            "threshold": ("threshold", taus, {"long_name": "least confidence to leave"}),
            "measure": record["measure"],
            "exit": exit_coordinate(record),
            "layer": record["layer"],
            "depth": record["depth"],
        },
        attrs=record.attrs | provenance("probes.route_exits", n_tokens=record.sizes["token"]),
    )


class _RoutedTokens:
    """All tokens `(layer, token)`, and what they give when each leaves at some layer."""

    def __init__(self, record: xr.Dataset) -> None:
        is_correct = (record["prediction"] == record["target"]).transpose("layer", "token")
        agrees = record["prediction"] == record["prediction"][-1]

        self.loss = record["cross_entropy"].values
        self.is_correct = is_correct.values.astype(float)
        self.agrees = agrees.values
        self.depth = record["depth"].values
        self.clusters = Clusters.from_record(record)

        self.fixed_losses = np.array([self.clusters.mean(row)[0] for row in self.loss])
        self.fixed_accuracies = self.is_correct.mean(1)
        self.token = np.arange(self.loss.shape[1])

    def evaluate_routing(
        self, exit_layer: np.ndarray, shares: np.ndarray, costs: np.ndarray
    ) -> dict[str, float]:
        """Return one row of the result.

        Args:
            exit_layer: Where each token leaves, `(token,)`.
            shares: The share of tokens that leave at each layer, `(layer,)`.
            costs: What a token costs that leaves there, `(layer,)`.
        """
        token_losses = self.loss[exit_layer, self.token]
        loss, loss_se = self.clusters.mean(token_losses)
        accuracy, accuracy_se = self.clusters.mean(self.is_correct[exit_layer, self.token])
        random_loss = float(shares @ self.fixed_losses)

        # gain = sum over layers of share * fixed loss - routed loss. To first order a token moves
        # it by its own loss, by the shares, and by the fixed means.
        influence = self.fixed_losses[exit_layer] + shares @ self.loss - token_losses
        _, gain_se = self.clusters.mean(influence)

        return {
            "cross_entropy": loss,
            "cross_entropy_se": loss_se,
            "perplexity": np.exp(loss),
            "perplexity_se": np.exp(loss) * loss_se,
            "accuracy": accuracy,
            "accuracy_se": accuracy_se,
            "agreement": self.agrees[exit_layer, self.token].mean(),
            "shallow": shares[:-1].sum(),
            "compute": shares @ self.depth,
            "compute_with_head": shares @ costs,
            "random_cross_entropy": random_loss,
            "random_perplexity": np.exp(random_loss),
            "random_accuracy": float(shares @ self.fixed_accuracies),
            "gain": random_loss - loss,
            "gain_se": gain_se,
        }
