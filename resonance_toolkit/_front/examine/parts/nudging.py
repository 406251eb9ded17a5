"""`/nudging`: does a credit signal lower the loss, block by block?"""

from typing import Any

import numpy as np
import xarray as xr

from resonance_toolkit import nudging
from resonance_toolkit._front.examine.parts.calls import write_attach, write_call, write_sample
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.work import Work, sentence_of

_CREDITS = {
    "backprop": "nudging.backprop()",
    "auxiliary": "nudging.auxiliary(lambda outputs, y: probe.loss(y, shift=False))",
    "random": "nudging.random(seed={seed})",
}


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the changes of the loss by hand."""
    settings = subject.settings
    verb, verb_settings = _choose_verb(sizes)
    lines = [write_sample(subject)]

    for name, credit in _CREDITS.items():
        text = write_call(
            verb,
            "model",
            "data",
            credit.format(seed=settings.seed),
            blocks=subject.layers,
            loss=settings.loss,
            samples=sizes["samples"],
            seed=settings.seed,
            **verb_settings,
        )
        line = f"by_{name} = {text}"

        # The auxiliary gradient is that of branches, which must be there.
        if name == "auxiliary":
            line = f"with {write_attach(subject)} as probe, probe.listening(): {line}"
        lines.append(line)

    return "\n".join(lines)


def measure(work: Work) -> None:
    """Nudge every block against three credits, and join the results."""
    work.measure("", lambda: _nudge_by_all_credits(work))


def _nudge_by_all_credits(work: Work) -> xr.Dataset:
    subject = work.subject
    seed = subject.settings.seed
    results = {
        "backprop": work.store.measure(
            "nudging of backprop", lambda: _nudge_by(work, nudging.backprop())
        )
    }

    if work.auxiliary_reason:
        work.child_reasons["auxiliary"] = work.auxiliary_reason
    else:
        try:
            results["auxiliary"] = work.store.measure(
                "nudging of auxiliary", lambda: _nudge_by_branches(work)
            )
        except (ValueError, TypeError, RuntimeError) as error:
            work.child_reasons["auxiliary"] = sentence_of(error)

    results["random"] = work.store.measure(
        "nudging of random", lambda: _nudge_by(work, nudging.random(seed=seed))
    )

    credits = xr.Variable(
        "credit", np.array(list(results), dtype=str), {"long_name": "credit signal"}
    )
    return xr.concat(
        list(results.values()), dim=credits, combine_attrs="drop_conflicts", join="exact"
    )


def _nudge_by_branches(work: Work) -> xr.Dataset:
    subject = work.subject
    with (
        subject.attach_branches(subject.model, subject.settings.seed) as probe,
        probe.listening(),
    ):
        credit = nudging.auxiliary(lambda outputs, targets: probe.loss(targets, shift=False))
        return _nudge_by(work, credit)


def _nudge_by(work: Work, credit: Any) -> xr.Dataset:
    subject = work.subject
    verb, settings = _choose_verb(work.sizes)
    function = nudging.measure if verb == "nudging.measure" else nudging.nudge
    result: xr.Dataset = function(
        subject.model,
        credit=credit,
        blocks=subject.layers,
        loss=subject.settings.loss,
        **subject.data_for(work.sizes["samples"]),
        **settings,
    )
    return result


def _choose_verb(sizes: dict[str, int]) -> tuple[str, dict[str, Any]]:
    """All measures of a credit if there is time for random directions, else the first of them."""
    if sizes["directions"]:
        return "nudging.measure", {"n_directions": sizes["directions"]}
    return "nudging.nudge", {}
