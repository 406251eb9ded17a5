"""`/response`: the same batches, plain and with branches, on copies; several seeds.

for each seed, for each arm:   train a copy, keep what it came to
the seeds with both arms       joined into one Dataset, differences paired by seed
"""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import AtMost, count_samples, name_of, provenance, take
from resonance_toolkit._front.examine.budget import SLACK
from resonance_toolkit._front.examine.intervals import t_interval
from resonance_toolkit._front.examine.parts.calls import write_call
from resonance_toolkit._front.examine.settings import describe_alpha
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.training import (
    ARMS,
    Arm,
    OutOfTimeError,
    SplitSamples,
    TrainingPlan,
    default_learning_rate,
    split_samples,
    train,
)
from resonance_toolkit._front.examine.work import Work

Array = NDArray[np.float64]

# A further seed is begun if it will probably end within so many times the part's seconds.
_PATIENCE = 1.25

_LONG_NAMES = {
    "train_loss": "main loss of the training batches since the last measurement",
    "loss": "main loss of held-out samples",
    "accuracy": "accuracy on held-out samples",
    "cosine": "cosine of the main and the auxiliary gradient",
    "cosine_total": "cosine over all shared parameters",
    "listening_accuracy": "accuracy of heads that only listen, on held-out samples",
}


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the experiment by hand."""
    settings = subject.settings
    text = write_call(
        "resonance.examine",
        "model",
        "data",
        layers=subject.layers,
        n=settings.n,
        loss=settings.loss,
        parts=["response"],
        steps=sizes["steps"],
        seeds=sizes["seeds"],
        batch_size=sizes["batch_size"],
        optimizer=settings.optimizer,
        seed=settings.seed,
    )
    return f"{text[:-1]}, alpha={describe_alpha(settings.alpha)})['response']"


def measure(work: Work) -> None:
    """Train both arms of as many seeds as were planned, while there is time."""
    if "response" in work.store.pieces:
        return
    work.need_auxiliary_loss()
    work.subject.copy_model()  # refuses before any data are drawn

    samples = draw_split(work)
    plan = _training_plan(work.sizes)
    share = work.plan.shares["response"]
    begin = work.clock.spent
    is_asked_for = work.subject.settings.seeds is not None

    def check_clock() -> None:
        if not is_asked_for and work.clock.spent - begin > SLACK * share:
            raise OutOfTimeError

    n_new = 0
    try:
        for seed in seeds_of(work):
            is_finished = all(_piece_of(arm, seed) in work.store.pieces for arm in ARMS)
            if is_finished:
                continue

            predicted = (work.clock.spent - begin) * (n_new + 1) / n_new if n_new else 0.0
            if not is_asked_for and predicted > _PATIENCE * share:
                raise OutOfTimeError
            for arm in ARMS:
                work.store.measure(
                    _piece_of(arm, seed),
                    lambda arm=arm, seed=seed: train(  # type: ignore[misc]
                        work.subject, arm, seed, samples, plan, check_clock
                    ),
                )
            n_new += 1
    except OutOfTimeError:
        if not finished_seeds(work):
            raise
        work.child_reasons["seeds"] = (
            f"{len(finished_seeds(work))} of {len(seeds_of(work))} seeds that were planned: "
            "the time was over"
        )
    finish(work, samples)


def finish(work: Work, samples: SplitSamples | None = None) -> None:
    """Join what is there into the part's Dataset; leave it out if no seed has both arms."""
    seeds = finished_seeds(work)
    if seeds and "response" not in work.store.pieces:
        samples = draw_split(work) if samples is None else samples
        work.store.keep_piece("response", join_runs(work, seeds, samples))


def seeds_of(work: Work) -> list[int]:
    """The seeds that were planned: those after the user's."""
    first = work.subject.settings.seed
    return list(range(first, first + work.sizes["seeds"]))


def finished_seeds(work: Work) -> list[int]:
    """The seeds of which both arms are there."""
    return [
        seed
        for seed in seeds_of(work)
        if all(_piece_of(arm, seed) in work.store.pieces for arm in ARMS)
    ]


def draw_split(work: Work) -> SplitSamples:
    """Draw what is trained on and what is held out."""
    subject = work.subject
    settings = subject.settings
    sizes = work.sizes
    pool = subject.loss.count_only(subject.draw(sizes["pool"]))

    if settings.held_out is None:
        n_samples = sum(count_samples(batch) for batch in pool)
        return split_samples(pool, min(sizes["held_out"], max(1, n_samples // 4)), settings.seed)

    held_out = take(
        settings.held_out,
        AtMost(sizes["held_out"]),
        settings.seed,
        model=subject.model,
        batch_size=None,
        has_loss=settings.loss is not None,
    )
    return SplitSamples(pool, subject.loss.count_only(held_out))


def join_runs(work: Work, seeds: list[int], samples: SplitSamples) -> xr.Dataset:
    """Put all runs side by side, with differences paired by seed and their intervals."""
    runs = {
        arm: xr.concat(
            [work.store.pieces[_piece_of(arm, seed)] for seed in seeds],
            dim=xr.Variable("seed", seeds),
            combine_attrs="drop_conflicts",
            join="outer",
        )
        for arm in ARMS
    }
    names = ["train_loss", "loss", "accuracy"]
    if all("listening_accuracy" in runs[arm] for arm in ARMS):
        names.append("listening_accuracy")
    joined = xr.concat(
        [runs[arm][names] for arm in ARMS],
        dim=xr.Variable("arm", np.array(ARMS, dtype=str)),
        combine_attrs="drop_conflicts",
    )
    traced = [name for name in ("cosine", "cosine_total") if name in runs["branches"]]
    joined = joined.merge(runs["branches"][traced])

    for measure_name in ("loss", "accuracy"):
        last = joined[measure_name].isel(step=-1)
        difference = last.sel(arm="branches", drop=True) - last.sel(arm="plain", drop=True)
        differences = difference.drop_vars("step").values
        joined = joined.assign(_with_interval(measure_name, differences))
    return _labelled(joined, work, samples)


def _with_interval(name: str, differences: Array) -> dict[str, Any]:
    mean, low, high = t_interval(differences)
    text = f"held-out {name} with branches minus plain"
    return {
        f"final_{name}_difference": ("seed", differences, {"long_name": f"{text}, by seed"}),
        f"{name}_difference": ((), mean, {"long_name": f"{text}, mean over seeds"}),
        f"{name}_difference_low": ((), low, {"long_name": f"{text}, 95 % interval from"}),
        f"{name}_difference_high": ((), high, {"long_name": f"{text}, 95 % interval to"}),
    }


def _labelled(joined: xr.Dataset, work: Work, samples: SplitSamples) -> xr.Dataset:
    subject = work.subject
    settings = subject.settings
    for name, text in _LONG_NAMES.items():
        if name in joined:
            joined[name].attrs["long_name"] = text

    coordinates = {
        "arm": "with branches or without",
        "seed": "seed of batches, dropout and branches",
        "step": "optimizer updates before",
        "trace_step": "optimizer updates before the gradients were read",
        "layer": "layer",
        "point": "attachment point",
    }
    for name, text in coordinates.items():
        if name in joined.coords:
            joined[name].attrs["long_name"] = text

    n_parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    is_default = settings.optimizer is None
    joined.attrs = provenance(
        "resonance.examine",
        subject.model,
        optimizer="AdamW" if is_default else name_of(settings.optimizer),
        lr=default_learning_rate(n_parameters) if is_default else "as the optimizer was made",
        batch_size=work.sizes["batch_size"],
        n_train=samples.n_train,
        n_held_out=samples.n_held_out,
        held_out="given" if settings.held_out is not None else "of the same data",
        steps=work.sizes["steps"],
        alpha=describe_alpha(settings.alpha),
        n=settings.n,
        loss=subject.loss.name,
        seed=settings.seed,
        listening=_listening_reason(work) or "ridge regression on the features after training",
    )
    return joined


def _listening_reason(work: Work) -> str:
    runs = [data for name, data in work.store.pieces.items() if name.startswith("run of ")]
    reasons = [run.attrs.get("listening_reason", "") for run in runs]
    return next((reason for reason in reasons if reason), "")


def _training_plan(sizes: dict[str, int]) -> TrainingPlan:
    steps = sizes["steps"]
    n_measured = min(sizes["measurements"], steps)
    measured = sorted({round(steps * i / n_measured) for i in range(n_measured + 1)})
    return TrainingPlan(steps, tuple(measured), sizes["trace_every"], sizes["batch_size"])


def _piece_of(arm: Arm, seed: int) -> str:
    return f"run of {arm} {seed}"
