"""The parts one after another, each with what it came to, whatever happens.

understood     layers, targets, whether there is an auxiliary loss    kept in the store
planned        what passes cost, how large each part is               kept in the store
each part      done | not applicable | refused | failed               kept in the store
               out of time | interrupted                              tried again after a resume
"""

import math
import warnings
from typing import Any

import torch
import xarray as xr
from tqdm import tqdm

from resonance_toolkit import (
    FailedLossError,
    FailedPassError,
    devices_of,
    evaluating,
    preserving,
    preserving_rng,
)
from resonance_toolkit._front.examine.budget import Clock
from resonance_toolkit._front.examine.cost import measure_cost
from resonance_toolkit._front.examine.parts import MEASURES, response
from resonance_toolkit._front.examine.plan import BATCH_SIZE, Plan, make_plan
from resonance_toolkit._front.examine.store import Store
from resonance_toolkit._front.examine.subject import Subject, try_out
from resonance_toolkit._front.examine.training import OutOfTimeError, auxiliary_loss
from resonance_toolkit._front.examine.tree import make_tree
from resonance_toolkit._front.examine.work import (
    FINAL,
    NotApplicableError,
    Outcome,
    Status,
    Work,
    sentence_of,
)


def run_parts(subject: Subject, store: Store) -> xr.DataTree:
    """Measure every part that was asked for, and return the tree."""
    outcomes = {part: Outcome(**seen) for part, seen in store.facts.get("outcomes", {}).items()}
    spent = sum(o.seconds for o in outcomes.values() if not math.isnan(o.seconds))
    clock = Clock(subject.settings.budget_seconds, spent)

    with _keeping_warnings():
        try:
            _understand_layers(subject, store)
            plan = _settle_plan(subject, store)
        except Exception as error:  # the model does not run: all parts say so
            store.facts.setdefault("layers", [])
            store.facts.setdefault("layers_reason", "the model does not run")
            store.facts.setdefault("targets", subject.loss.meaning)
            failure = Outcome(_status_of(error), sentence_of(error), 0.0)
            outcomes = dict.fromkeys(subject.settings.parts, failure)
            return make_tree(subject, None, store, outcomes)

    is_interrupted = False
    parts = subject.settings.parts
    with tqdm(total=len(parts), unit="part", disable=None, leave=False) as bar:
        for part in parts:
            bar.set_description(f"examine: {part}")
            earlier = outcomes.get(part)
            if earlier is None or earlier.status not in FINAL:
                work = Work(part, subject, plan, store, clock, store.facts["auxiliary_reason"])
                outcome = _run_part(work, earlier, is_interrupted=is_interrupted)
                is_interrupted |= outcome.status == "interrupted"
                outcomes[part] = outcome
                store.keep_fact("outcomes", {p: o.as_numbers() for p, o in outcomes.items()})
            bar.update()

    return make_tree(subject, plan, store, {part: outcomes[part] for part in parts})


def _run_part(work: Work, earlier: Outcome | None, *, is_interrupted: bool) -> Outcome:
    if is_interrupted:
        return Outcome("interrupted", "stopped by the user before it began")
    spent_before = 0.0 if earlier is None or math.isnan(earlier.seconds) else earlier.seconds
    if not work.clock.has_room_for(work.plan.estimates[work.part]):
        reason = f"no time was left of {work.clock.budget_seconds:g} s"
        return Outcome("out of time", reason, spent_before or math.nan)

    begin = work.clock.spent
    status: Status = "done"
    reason = ""
    with _keeping_warnings() as caught:
        try:
            MEASURES[work.part](work)
        except KeyboardInterrupt:
            status, reason = "interrupted", "stopped by the user"
        except OutOfTimeError:
            status, reason = "out of time", "the first seed took longer than the part's time"
        except Exception as error:  # whatever it is, the other parts go on
            status, reason = _status_of(error), sentence_of(error)
        if status != "done" and work.part == "response":
            _keep_finished_seeds(work)

    # One line each: the same warning may come once for every batch.
    sentences = dict.fromkeys(
        " ".join(str(warning.message).split())
        for warning in caught
        if issubclass(warning.category, UserWarning | RuntimeWarning)
    )
    return Outcome(
        status,
        reason,
        spent_before + work.clock.spent - begin,
        "\n".join(sentences),
        work.child_reasons,
    )


def _keep_finished_seeds(work: Work) -> None:
    try:
        response.finish(work)
    except Exception as error:  # what stopped the part stops this, too
        work.child_reasons["seeds"] = sentence_of(error)


def _status_of(error: BaseException) -> Status:
    if isinstance(error, NotApplicableError):
        return "not applicable"
    # A pass that fails is no refusal, though it is told as one.
    is_failure = isinstance(error, FailedPassError | FailedLossError)
    return "refused" if isinstance(error, ValueError | TypeError) and not is_failure else "failed"


def _understand_layers(subject: Subject, store: Store) -> None:
    """Find out which layers get branches, and whether the branches have a loss."""
    if "layers" in store.facts:
        return
    try_out(subject)

    names: list[str] = []
    reason = ""
    auxiliary_reason = ""
    try:
        with subject.attach_branches(subject.model, subject.settings.seed) as probe:
            names = list(probe.layers)
            reason = probe.reason or "named in the call"
            _try_auxiliary_loss(subject, probe)
    except Exception as error:  # every part that needs branches will say so
        auxiliary_reason = sentence_of(error)

    if not names:
        try:
            modules, reason = subject.find_modules()
            names = list(modules)
        except ValueError as error:
            reason = sentence_of(error)

    with preserving(subject.model), evaluating(subject.model):
        targets = subject.loss.describe(subject.model, subject.few)
    store.facts |= {
        "layers": names,
        "layers_reason": reason,
        "targets": targets,
        "auxiliary_reason": auxiliary_reason,
    }


def _try_auxiliary_loss(subject: Subject, probe: Any) -> None:
    model = subject.model
    _, targets = subject.few
    with (
        preserving(model),
        preserving_rng(devices_of(model)),
        evaluating(model),
        probe.listening(),
        torch.enable_grad(),
    ):
        main, _ = subject.loss.on_batch(model, subject.few)
        auxiliary_loss(probe, targets, main)


def _settle_plan(subject: Subject, store: Store) -> Plan:
    """Return the plan of the run that this one goes on from, or make one."""
    if "plan" in store.facts:
        return Plan(**store.facts["plan"])

    parts = subject.settings.parts
    batch_size = subject.settings.batch_size or BATCH_SIZE
    cost = measure_cost(subject, batch_size, trains="response" in parts)
    plan = make_plan(subject, cost, len(store.facts["layers"]), parts)
    store.facts["cost"] = cost.as_numbers()
    store.keep_fact("plan", plan.as_numbers())
    return plan


def _keeping_warnings() -> Any:
    """Catch warnings, which belong into the tree."""
    return warnings.catch_warnings(record=True, action="always")
