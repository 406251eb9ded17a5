import numpy as np
import xarray as xr

from probes._exit_analysis.leaving import ANY, check_record, check_thresholds, exits_of, leave
from resonance_toolkit import provenance


def exit_map(
    record: xr.Dataset, threshold: float, *, measure: str = "max softmax", exit: str = ANY
) -> xr.Dataset:
    """Which token leaves where, and whether it is right to.

    Args:
        record: Made by `record_exits`.
        threshold: Least confidence to leave.
        measure: One of the record's measures.
        exit: The early layer that is opened, or `"any"`: all of them.

    Returns:
        Dataset over `token` with `left_at`, the number of the layer where it leaves, counted from 0
        along `layer`; `confidence` there; `cross_entropy` and `prediction` there; `correct`, 1 if
        the prediction is the target; `agrees`, 1 if it is the whole model's; `cost`, the
        cross-entropy that leaving adds (negative where leaving helps).

    Raises:
        ValueError: If an argument is unknown or NaN.
    """
    check_record(record)
    exits, measures = exits_of(record), [str(m) for m in record["measure"].values]
    if exit not in exits:
        raise ValueError(f"`exit`: expected one of {', '.join(exits)}, got {exit!r}")
    if measure not in measures:
        raise ValueError(f"`measure`: expected one of {', '.join(measures)}, got {measure!r}")
    (tau,) = check_thresholds("threshold", threshold, most=1)
    confidence = record["confidence"].sel(measure=measure).values
    left = leave(confidence, tau, exits[exit])
    token = np.arange(len(left))
    loss, prediction = record["cross_entropy"].values, record["prediction"].values
    found = {
        "left_at": (left, "layer where the token leaves"),
        "confidence": (confidence[left, token], "confidence there"),
        "cross_entropy": (loss[left, token], "cross-entropy there"),
        "prediction": (prediction[left, token], "likeliest class there"),
        "correct": ((prediction[left, token] == record["target"].values).astype(int), "1 if right"),
        "agrees": (
            (prediction[left, token] == prediction[-1]).astype(int),
            "1 if the whole model says the same",
        ),
        "cost": (loss[left, token] - loss[-1], "cross-entropy added by leaving"),
    }
    nats = {"cross_entropy", "cost"}
    return xr.Dataset(
        {
            name: (
                "token",
                values,
                {"long_name": text} | ({"units": "nat"} if name in nats else {}),
            )
            for name, (values, text) in found.items()
        },
        coords={
            name: record[name]
            for name in ("token", "sample", "position", "target", "layer", "depth")
        },
        attrs=record.attrs
        | provenance("probes.exit_map", threshold=float(tau), measure=measure, exit=exit),
    )
