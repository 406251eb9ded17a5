"""The parts one after another, each with what it came to, whatever happens.

understood     layers, targets, whether there is an auxiliary loss    kept in the store
planned        what passes cost, how large each part is               kept in the store
each part      done | not applicable | refused | failed               kept in the store
               out of time | interrupted                              tried again after a resume

The training experiment comes after the others: its size is the only one that can still change when
time turns out to be short, and so it takes what they leave. A part that even at its smallest takes
far more than its share waits until then.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xarray as xr

from resonance_toolkit import (
    FailedLossError,
    FailedPassError,
    NotApplicableError,
    devices_of,
    evaluating,
    preserving,
    preserving_rng,
    reporting,
    showing_progress,
)
from resonance_toolkit._front.examine.budget import Clock
from resonance_toolkit._front.examine.cost import measure_cost
from resonance_toolkit._front.examine.parts import MEASURES, response
from resonance_toolkit._front.examine.plan import BATCH_SIZE, Plan, make_plan
from resonance_toolkit._front.examine.store import Store
from resonance_toolkit._front.examine.subject import N_TRIED, Subject, try_out
from resonance_toolkit._front.examine.training import ARMS, OutOfTimeError, auxiliary_loss
from resonance_toolkit._front.examine.tree import make_tree
from resonance_toolkit._front.examine.work import (
    FINAL,
    Outcome,
    Status,
    Work,
    sentence_of,
)

Outcomes = dict[str, Outcome]

# A part that takes so many times its share waits for the others.
_PATIENCE = 1.5


def run_parts(subject: Subject, store: Store, clock: Clock) -> xr.DataTree:
    """Measure every part that was asked for, and return the tree."""
    outcomes = {
        part: Outcome(**numbers) for part, numbers in store.facts.get("outcomes", {}).items()
    }
    parts_before = sum(o.seconds for o in outcomes.values() if not math.isnan(o.seconds))
    preparation_before = store.facts.get("preparation_seconds", 0.0)
    clock.add(parts_before + preparation_before)

    with _keeping_warnings():
        try:
            _understand_layers(subject, store)
            plan = _settle_plan(subject, store)
        except Exception as error:  # the model does not run: all parts say so
            store.facts.setdefault("layers", [])
            store.facts.setdefault("layers_reason", "the model does not run")
            store.facts.setdefault("targets", subject.loss.meaning)
            store.facts["preparation_seconds"] = clock.spent - parts_before
            failure = Outcome(_status_of(error), sentence_of(error), 0.0)
            outcomes = dict.fromkeys(subject.settings.parts, failure)
            return make_tree(subject, None, store, outcomes)

    store.keep_fact("preparation_seconds", clock.spent - parts_before)
    with _telling_progress(plan, outcomes, store) as progress:
        _run_all(subject, plan, store, clock, outcomes, progress)
    return make_tree(
        subject, plan, store, {part: outcomes[part] for part in subject.settings.parts}
    )


def _run_all(
    subject: Subject,
    plan: Plan,
    store: Store,
    clock: Clock,
    outcomes: Outcomes,
    progress: "_PartProgress",
) -> None:
    """Run what is not finished, and note what each part came to."""
    is_interrupted = False
    for part in _in_order(plan):
        earlier = outcomes.get(part)
        if earlier is not None and earlier.status in FINAL:
            continue
        if is_interrupted:
            seconds = math.nan if earlier is None else earlier.seconds
            outcomes[part] = Outcome("interrupted", "stopped by the user before it began", seconds)
            continue

        reason = store.facts["auxiliary_reason"]
        try:
            with progress.showing(part) as on_advance:
                work = Work(part, subject, plan, store, clock, reason, on_advance)
                outcomes[part] = _run_part(work, earlier)
            store.keep_fact("outcomes", {p: o.as_numbers() for p, o in outcomes.items()})
        except KeyboardInterrupt:  # between measuring and noting it
            outcomes.setdefault(part, Outcome("interrupted", "stopped by the user"))
            is_interrupted = True
        is_interrupted |= outcomes[part].status == "interrupted"


def _in_order(plan: Plan) -> list[str]:
    """Parts that keep their share of the time, the experiment, and those that do not."""

    def rank(part: str) -> int:
        if part == "response":
            return 1
        return 2 if plan.estimates[part] > _PATIENCE * plan.shares[part] else 0

    return sorted(plan.sizes, key=rank)


def _run_part(work: Work, earlier: Outcome | None) -> Outcome:
    spent_before = 0.0 if earlier is None or math.isnan(earlier.seconds) else earlier.seconds
    if not _has_time_for(work):
        return Outcome("out of time", _say_what_it_takes(work), spent_before or math.nan)

    begin = work.clock.spent
    status: Status = "done"
    reason = ""
    with _keeping_warnings() as caught_warnings:
        try:
            MEASURES[work.part](work)
        except KeyboardInterrupt:
            status = "interrupted"
            reason = "stopped by the user"
        except OutOfTimeError:
            status = "out of time"
            reason = _say_what_it_takes(work)
        except Exception as error:  # whatever it is, the other parts go on
            status = _status_of(error)
            reason = sentence_of(error)

        if status != "done" and work.part == "response":
            _keep_finished_seeds(work)

    # One line each: the same warning may come once for every batch.
    sentences = dict.fromkeys(
        " ".join(str(warning.message).split())
        for warning in caught_warnings
        if issubclass(warning.category, UserWarning | RuntimeWarning)
    )
    return Outcome(
        status,
        reason,
        spent_before + work.clock.spent - begin,
        "\n".join(sentences),
        work.child_reasons,
    )


def _has_time_for(work: Work) -> bool:
    if work.part != "response":
        return work.clock.has_room_for(work.plan.estimates[work.part])

    # Seeds that the user asks for are kept; of others, one at least must end in time.
    is_asked_for = work.subject.settings.seeds is not None
    is_begun = bool(response.finished_seeds(work))
    seconds_of_seed = work.plan.estimates["response"] / work.sizes["seeds"]
    return is_asked_for or is_begun or work.clock.has_room_for(seconds_of_seed)


def _say_what_it_takes(work: Work) -> str:
    """Say how much time a part lacks, and which budget would have it."""
    share = work.plan.shares[work.part] / work.clock.budget_seconds
    seconds = work.plan.estimates[work.part]
    budget = max(seconds / share, 2 * work.clock.budget_seconds, work.clock.spent)
    return (
        f"not enough time; even at its smallest it takes about {_round_up(seconds)} s on top of "
        f"the other parts, for which `budget={_round_up(budget)}` has room"
    )


def _round_up(seconds: float) -> int:
    # To two digits: the estimate itself may be off by half.
    n_digits = math.floor(math.log10(max(seconds, 1.0))) + 1
    unit: int = 10 ** max(n_digits - 2, 0)
    return math.ceil(seconds / unit) * unit


class _PartProgress:
    """Tells how far the parts have come, each counted as what it was planned to take."""

    def __init__(self, plan: Plan, counter: Any) -> None:
        self._plan = plan
        self._counter = counter

    @contextmanager
    def showing(self, part: str) -> Iterator[Callable[[int], None]]:
        """Name the part that is at work, and give what its runs are counted by."""
        percents = self._plan.percents[part]
        n_runs = len(ARMS) * self._plan.sizes[part].get("seeds", 1)
        percents_told = 0

        def advance(n: int) -> None:
            nonlocal percents_told
            step = min(n * percents // n_runs, percents - percents_told)
            percents_told += step
            self._counter.update(step)

        self._counter.set_description(f"examine: {part}")
        try:
            # The bars of the verbs inside would come and go beneath this one.
            with showing_progress("off"):
                yield advance
        finally:
            self._counter.update(percents - percents_told)
            self._counter.set_description("examine")


@contextmanager
def _telling_progress(plan: Plan, outcomes: Outcomes, store: Store) -> Iterator[_PartProgress]:
    percents = plan.percents
    percents_before = sum(percents[part] for part, o in outcomes.items() if o.status in FINAL)
    with reporting(
        "examine",
        unit="percent",
        total=sum(percents.values()),
        found=percents_before,
        source=str(store.path) if percents_before else "",
    ) as counter:
        yield _PartProgress(plan, counter)


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
            try:
                _try_auxiliary_loss(subject, probe)
            except (ValueError, TypeError) as error:
                auxiliary_reason = f"the branches have no loss: {sentence_of(error)}"
    except Exception as error:  # every part that needs branches will say so
        auxiliary_reason = sentence_of(error)

    if not names:
        try:
            modules, reason = subject.find_modules()
            names = list(modules)
        except ValueError as error:
            reason = sentence_of(error)

    with preserving(subject.model), evaluating(subject.model):
        targets = subject.describe_targets(subject.first(N_TRIED))
    store.facts |= {
        "layers": names,
        "layers_reason": reason,
        "targets": targets,
        "auxiliary_reason": auxiliary_reason,
    }


def _try_auxiliary_loss(subject: Subject, probe: Any) -> None:
    model = subject.model
    batch = subject.first(N_TRIED)
    with (
        preserving(model),
        preserving_rng(devices_of(model)),
        evaluating(model),
        probe.listening(),
        torch.enable_grad(),
    ):
        main, _ = subject.loss.on_batch(model, batch)
        auxiliary_loss(probe, batch[1], main)


def _settle_plan(subject: Subject, store: Store) -> Plan:
    """Return the plan of the run that this one continues, or make one."""
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
