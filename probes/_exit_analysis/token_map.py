import numpy as np
import xarray as xr

from probes._exit_analysis.leaving import (
    ANY,
    check_record,
    check_thresholds,
    exit_layer_of_tokens,
    exit_sets,
)
from probes._exit_analysis.token_statistics import Measure
from resonance_toolkit import check_choice, provenance

_LONG_NAMES = {
    "left_at": "layer where the token leaves",
    "confidence": "confidence there",
    "cross_entropy": "cross-entropy there",
    "prediction": "likeliest class there",
    "correct": "1 if right",
    "agrees": "1 if the whole model says the same",
    "cost": "cross-entropy added by leaving",
}
_IN_NAT = {"cross_entropy", "cost"}
_COORDINATES = ("token", "sample", "position", "target", "layer", "depth")


def exit_map(
    record: xr.Dataset, threshold: float, *, measure: Measure = "max softmax", exit: str = ANY
) -> xr.Dataset:
    """Show where each token leaves, and whether its answer is right.

    Args:
        record: Made by `record_exits`.
        threshold: A token leaves if its confidence is at least this.
        measure: One of the record's measures.
        exit: The early layer that is opened, or `"any"` to open all of them.

    Returns:
        Dataset over `token` with `left_at`, the number of the layer where it leaves, counted from 0
        along `layer`; `confidence` there; `cross_entropy` and `prediction` there; `correct`, 1 if
        the prediction is the target; `agrees`, 1 if it is the whole model's; `cost`, the
        cross-entropy that leaving adds (negative where leaving helps).

    Raises:
        ValueError: If an argument is unknown or NaN.

    Examples:
        >>> import torch
        >>> from probes import record_exits
        >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        >>> data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(model, data, ["0", "1"])
        >>> exit_map(record, 0)["left_at"].values  # any confidence will do
        array([0, 0, 0, 0, 0])
    """
    check_record(record)
    sets_of_exits = exit_sets(record)
    check_choice("exit", exit, sets_of_exits)
    check_choice("measure", measure, [str(name) for name in record["measure"].values])
    (tau,) = check_thresholds("threshold", threshold, at_most=1)

    confidence = record["confidence"].sel(measure=measure).values
    loss = record["cross_entropy"].values
    prediction = record["prediction"].values

    exit_layer = exit_layer_of_tokens(confidence, tau, sets_of_exits[exit])
    token = np.arange(len(exit_layer))
    exit_prediction = prediction[exit_layer, token]
    exit_loss = loss[exit_layer, token]
    values = {
        "left_at": exit_layer,
        "confidence": confidence[exit_layer, token],
        "cross_entropy": exit_loss,
        "prediction": exit_prediction,
        "correct": (exit_prediction == record["target"].values).astype(int),
        "agrees": (exit_prediction == prediction[-1]).astype(int),
        "cost": exit_loss - loss[-1],
    }

    variables = {}
    for name, array in values.items():
        attributes = {"long_name": _LONG_NAMES[name]}
        if name in _IN_NAT:
            attributes["units"] = "nat"
        variables[name] = ("token", array, attributes)

    return xr.Dataset(
        variables,
        coords={name: record[name] for name in _COORDINATES},
        attrs=record.attrs
        | provenance("probes.exit_map", threshold=float(tau), measure=measure, exit=exit),
    )
