"""`/gradients`: do the main and the auxiliary loss pull the same way, at the given weights?"""

from typing import Any

import xarray as xr
from torch import Tensor

from resonance_toolkit import evaluating, gradients
from resonance_toolkit._front.examine.parts.calls import (
    write_attach,
    write_call,
    write_main_loss,
    write_sample,
)
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.training import auxiliary_loss
from resonance_toolkit._front.examine.work import Work


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the cosines by hand."""
    losses = "lambda x, y: (main_loss(model, x, y), probe.loss(y, shift=False))"
    noise = write_call(
        "gradients.noise",
        "model.eval()",
        "data",
        losses,
        samples=sizes["samples"],
        batch_size=sizes["batch_size"],
        seed=subject.settings.seed,
    )
    attached = f"with {write_attach(subject)} as probe, probe.listening(): result = {noise}"
    return "\n".join([write_main_loss(subject), write_sample(subject), attached])


def measure(work: Work) -> None:
    """Compare the two gradients on several batches."""
    work.need_auxiliary_loss()
    work.measure("", lambda: _compare(work))


def _compare(work: Work) -> xr.Dataset:
    subject = work.subject
    model = subject.model
    data = subject.data_for(work.sizes["samples"])

    with subject.attach_branches(model, subject.settings.seed) as probe:

        def main_and_auxiliary(inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
            main, _ = subject.loss.on_batch(model, (inputs, targets))
            return main, auxiliary_loss(probe, targets, main)

        with evaluating(model), probe.listening():
            result: xr.Dataset = gradients.noise(
                model,
                data["data"],
                main_and_auxiliary,
                samples=data["samples"],
                batch_size=work.sizes["batch_size"],
                seed=data["seed"],
            )
    return result.assign_attrs(loss=subject.loss.name)
