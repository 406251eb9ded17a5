"""`/curvature`: the Hessian at the weights."""

from __future__ import annotations

import math

import xarray as xr

from resonance_toolkit._front.page.numbers import Number, value_of, write_number
from resonance_toolkit._front.page.sections.part import Findings, child_of, result_of
from resonance_toolkit._front.page.sections.words import keep_defined


def describe(node: xr.DataTree) -> Findings:
    """Say how sharply the loss curves, and how large a step may be."""
    result = result_of(node)
    critical = child_of(node, "critical_sharpness")
    largest = value_of(result, "largest", "max")
    smallest = value_of(result, "smallest", "min")
    trace_se = value_of(result, "trace_se")
    trace = value_of(result, "trace")
    step = math.nan if critical is None else value_of(critical, "critical_step", "min")

    numbers = [
        Number("largest eigenvalue", largest, "0 on a plateau; the sharpest of all directions"),
        Number(
            "smallest eigenvalue",
            smallest,
            "0 or above in a minimum; below 0, the loss falls on both sides of the weights",
        ),
        Number(
            "trace",
            trace,
            "the sum of all eigenvalues; the interval is two standard errors either way",
            low=trace - 2 * trace_se,
            high=trace + 2 * trace_se,
        ),
        Number(
            "largest stable learning rate",
            2 / largest if largest > 0 else math.nan,
            "2 over the largest eigenvalue: beyond it, plain gradient descent diverges along the "
            "sharpest direction",
        ),
        Number(
            "critical learning rate",
            step,
            "a step down the gradient with a larger one raises the loss; on a quadratic loss it is "
            "never below the largest stable learning rate",
        ),
    ]

    return Findings(
        lead=_say_lead(largest, smallest, step),
        numbers=keep_defined(numbers),
        meanings=[
            "An eigenvalue of the Hessian says how strongly the loss curves along one direction. "
            "Neural networks usually have a few large ones and very many near zero: most "
            "directions hardly change the loss.",
        ],
        results=[result],
    )


def _say_lead(largest: float, smallest: float, step: float) -> str:
    if math.isnan(largest):
        return ""

    lead = f"The largest eigenvalue of the Hessian of the loss is {write_number(largest)}"
    if not math.isnan(smallest):
        # An eigenvalue of zero is estimated a little off it, measured by the largest one.
        kind = (
            "The negative one shows that the weights are not at a minimum."
            if smallest < -0.05 * abs(largest)
            else "Beside the largest, the smallest is close to zero, as near a minimum."
        )
        lead += f", the smallest {write_number(smallest)}. {kind}"
    else:
        lead += "."

    if not math.isnan(step):
        lead += (
            " A step down the gradient raises the loss if its learning rate is above "
            f"{write_number(step)}."
        )

    return lead
