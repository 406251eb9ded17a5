"""`/curvature`: eigenvalues, trace and density of the Hessian, and the critical step."""

from typing import Any

from resonance_toolkit import landscape
from resonance_toolkit._front.examine.parts.calls import write_call
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.work import Work


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the numbers by hand."""
    settings = subject.settings
    curvature = write_call(
        "landscape.curvature",
        "model",
        "data",
        loss=settings.loss,
        samples=sizes["samples"],
        seed=settings.seed,
        **_effort(sizes),
    )
    sharpness = write_call(
        "landscape.critical_sharpness",
        "model",
        "data",
        loss=settings.loss,
        samples=sizes["samples"],
        seed=settings.seed,
    )
    return f"{curvature}\n{sharpness}"


def measure(work: Work) -> None:
    """Measure the Hessian, and how large a step down the gradient may be."""
    subject = work.subject
    loss = subject.settings.loss
    data = subject.data_for(work.sizes["samples"])

    work.measure(
        "",
        lambda: landscape.curvature(subject.model, loss=loss, **data, **_effort(work.sizes)),
    )
    work.attempt(
        "critical_sharpness",
        lambda: landscape.critical_sharpness(subject.model, loss=loss, **data),
    )


def _effort(sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "k": sizes["k"],
        "max_products": sizes["max_products"],
        "trace_probes": sizes["trace_probes"],
        "density_runs": 1,
        "density_steps": sizes["density_steps"],
    }
