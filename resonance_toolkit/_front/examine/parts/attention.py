"""`/attention`: where the model looks, if it has attention."""

import xarray as xr

from resonance_toolkit import NotApplicableError, attention
from resonance_toolkit._front.examine.parts.calls import write_call
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.work import Work

# Samples whose weights are kept, of which a picture shows one.
_N_MAPS = 4


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the statistics by hand."""
    settings = {"samples": sizes["samples"], "seed": subject.settings.seed}
    capture = write_call("attention.capture", "model", "data", **settings, maps=True)
    return f"{capture}\n{write_call('attention.sinks', 'model', 'data', **settings)}"


def measure(work: Work) -> None:
    """Measure the attention of all layers, its maps for a few samples, and its sinks."""
    subject = work.subject
    data = subject.data_for(work.sizes["samples"])

    def capture() -> xr.Dataset:
        try:
            captured: xr.Dataset = attention.capture(subject.model, maps=True, **data)
        except NotApplicableError as error:
            # Its own sentence asks for another kernel, which is not what most models lack.
            raise NotApplicableError(
                "no attention was seen in a forward pass of this model"
            ) from error

        few = captured[["weight"]].isel(sample=slice(_N_MAPS))
        work.measure("maps", lambda: few)
        return captured.drop_vars(["weight", "prediction"], errors="ignore").drop_dims(
            ["key", "output"], errors="ignore"
        )

    work.measure("", capture)
    work.attempt("sinks", lambda: attention.sinks(subject.model, **data))
