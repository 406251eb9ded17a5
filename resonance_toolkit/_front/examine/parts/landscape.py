"""`/landscape`: the loss around the weights, how rough it is, and what branches dilute."""

from typing import Any

import xarray as xr

from resonance_toolkit import landscape
from resonance_toolkit._front.examine.parts.calls import (
    Verbatim,
    write_attach,
    write_call,
    write_sample,
)
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.work import Work


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the surfaces by hand."""
    settings = subject.settings
    shared: dict[str, Any] = {"loss": settings.loss, "seed": settings.seed, "method": "adaptive"}

    grid = write_call(
        "landscape.grid", "model", "data", size=sizes["size"], samples=sizes["samples"], **shared
    )
    dilution = write_call(
        "landscape.dilution",
        "model",
        "data",
        Verbatim("probe"),
        size=sizes["dilution_size"],
        samples=sizes["dilution_samples"],
        **shared,
    )

    lines = [
        f"surface = {grid}",
        "smoothness = landscape.smoothness(surface)",
        write_sample(subject),
        f"with {write_attach(subject)} as probe: diluted = {dilution}",
    ]
    return "\n".join(lines)


def measure(work: Work) -> None:
    """Measure the surface, its roughness, and its dilution by branches."""
    subject = work.subject
    sizes = work.sizes
    settings: dict[str, Any] = {"loss": subject.settings.loss, "method": "adaptive"}

    surface = work.measure(
        "",
        lambda: landscape.grid(
            subject.model, size=sizes["size"], **subject.data_for(sizes["samples"]), **settings
        ),
    )
    work.attempt("smoothness", lambda: landscape.smoothness(surface))

    def measure_dilution() -> xr.Dataset:
        # The branches' weights are all that is asked of them: the model never runs with them.
        with subject.attach_branches(subject.model, subject.settings.seed) as probe:
            result: xr.Dataset = landscape.dilution(
                subject.model,
                extra=probe,
                size=sizes["dilution_size"],
                **subject.data_for(sizes["dilution_samples"]),
                **settings,
            )
        return result

    work.attempt("dilution", measure_dilution)
