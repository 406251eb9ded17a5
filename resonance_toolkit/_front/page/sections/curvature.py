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
        Number("largest eigenvalue", largest, "0 on a plateau; the steepest direction of all"),
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
            "2 over the largest eigenvalue; for plain gradient descent",
        ),
        Number(
            "critical step down the gradient",
            step,
            "a larger step raises the loss; never below 2 over the largest eigenvalue on a "
            "quadratic loss",
        ),
    ]

    return Findings(
        lead=_say_lead(largest, smallest, step),
        numbers=keep_defined(numbers),
        meanings=[
            "Eigenvalues of the Hessian say how the slope changes along each direction. A few "
            "large ones and very many near zero are the rule for neural networks: most directions "
            "hardly matter to the loss.",
        ],
        results=[result],
    )


def _say_lead(largest: float, smallest: float, step: float) -> str:
    if math.isnan(largest):
        return ""

    lead = f"In its steepest direction the loss curves with {write_number(largest)}"
    if not math.isnan(smallest):
        # An eigenvalue of zero is estimated a little off it, measured by the largest one.
        kind = (
            "so the weights are not at a minimum"
            if smallest < -0.05 * abs(largest)
            else "as near a minimum"
        )
        lead += f", in its flattest or most hollow with {write_number(smallest)}, {kind}"

    lead += "."
    if not math.isnan(step):
        lead += f" Down the gradient, a step of more than {write_number(step)} raises the loss."

    return lead
