"""`/response`: the same batches, plain and with branches, on copies; several seeds.

for each seed, for each arm:   train a copy, keep what it came to
the seeds with both arms       joined into one Dataset, differences paired by seed
"""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import count_samples, name_of, provenance
from resonance_toolkit._front.examine.intervals import difference_of, t_interval
from resonance_toolkit._front.examine.parts.calls import Verbatim, write_call
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
    train_copy,
)
from resonance_toolkit._front.examine.work import Work

Array = NDArray[np.float64]

# A further seed is begun if it will probably end within so many times the budget.
_PATIENCE = 1.25

_LONG_NAMES = {
    "train_loss": "main loss of the training batches since the last measurement",
    "loss": "main loss of held-out samples",
    "accuracy": "accuracy on held-out samples",
    "cosine": "cosine of the main and the auxiliary gradient",
    "cosine_total": "cosine over all shared parameters",
    "group_loss": "main loss of groups of held-out samples after the last update",
    "group_accuracy": "accuracy on groups of held-out samples after the last update",
    "listening_accuracy": "accuracy of heads that only listen, on held-out samples",
    "listening_loss": "loss of heads that only listen, on held-out samples",
}

# Of heads that only listen; the loss where there are no classes.
_LISTENING = ("listening_accuracy", "listening_loss")


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat the experiment by hand."""
    settings = subject.settings
    held_out = sizes["held_out"]
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
        held_out=Verbatim("held_out") if settings.holds_out_data else held_out,
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
    try:
        _train_all(work, samples)
    except OutOfTimeError:
        if not finished_seeds(work):
            raise
        work.child_reasons["seeds"] = (
            f"{len(finished_seeds(work))} of {len(seeds_of(work))} planned seeds; there was no "
            "time for more"
        )
    finish(work, samples)


def _train_all(work: Work, samples: SplitSamples) -> None:
    plan = _training_plan(work.sizes)
    clock = work.clock
    is_asked_for = work.subject.settings.seeds is not None

    def check_clock() -> None:
        if not is_asked_for and not clock.has_room_for(0):
            raise OutOfTimeError

    begin = clock.spent
    n_new = 0
    for seed in seeds_of(work):
        if all(_piece_of(arm, seed) in work.store.pieces for arm in ARMS):
            work.advance(len(ARMS))
            continue

        # The first is begun if the runner began the part.
        seconds_of_seed = (clock.spent - begin) / n_new if n_new else 0.0
        is_late = clock.spent + seconds_of_seed > _PATIENCE * clock.budget_seconds
        if finished_seeds(work) and is_late and not is_asked_for:
            raise OutOfTimeError
        for arm in ARMS:
            work.store.measure(
                _piece_of(arm, seed),
                lambda arm=arm, seed=seed: train_copy(  # type: ignore[misc]
                    work.subject, arm, seed, samples, plan, check_clock
                ),
            )
            work.advance()
        n_new += 1


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

    if not settings.holds_out_data:
        n_samples = sum(count_samples(batch) for batch in pool)
        return split_samples(pool, min(sizes["held_out"], max(1, n_samples // 4)), settings.seed)

    return SplitSamples(pool, subject.draw_held_out(sizes["held_out"]))


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
    names = ["train_loss", "loss", "accuracy", "group_loss", "group_accuracy"]
    names += [name for name in _LISTENING if all(name in runs[arm] for arm in ARMS)]
    experiment = xr.concat(
        [runs[arm][names] for arm in ARMS],
        dim=xr.Variable("arm", np.array(ARMS, dtype=str)),
        combine_attrs="drop_conflicts",
    )

    # There is nothing to compare the gradient of the plain arm with.
    traced_names = [name for name in ("cosine", "cosine_total") if name in runs["branches"]]
    experiment = experiment.merge(runs["branches"][traced_names])

    for measure_name in ("loss", "accuracy"):
        experiment = experiment.assign(_compare_arms(experiment, measure_name))
    for name in _LISTENING:
        if name in experiment:
            experiment = experiment.assign(_compare_listening(experiment[name]))
    return _add_labels(experiment, work, samples)


def _compare_arms(experiment: xr.Dataset, name: str) -> dict[str, Any]:
    difference = difference_of(experiment, name)
    text = f"held-out {name} with branches minus plain"
    interval = "95 % interval over seeds and held-out samples"
    half_interval = "half the interval that"

    scalars = {
        f"{name}_difference": (difference.mean, "mean over seeds"),
        f"{name}_difference_low": (difference.low, f"{interval}, from"),
        f"{name}_difference_high": (difference.high, f"{interval}, to"),
        f"{name}_half_seeds": (difference.half_seeds, f"{half_interval} seeds alone give"),
        f"{name}_half_samples": (
            difference.half_samples,
            f"{half_interval} held-out samples alone give",
        ),
    }

    by_seed = ("seed", difference.by_seed, {"long_name": f"{text}, by seed"})
    return {f"final_{name}_difference": by_seed} | {
        key: ((), value, {"long_name": f"{text}, {meaning}"})
        for key, (value, meaning) in scalars.items()
    }


def _compare_listening(values: xr.DataArray) -> dict[str, Any]:
    """What listening heads read from the copies with branches and not from the plain ones."""
    by_seed = values.sel(arm="branches", drop=True) - values.sel(arm="plain", drop=True)
    mean, low, high = t_interval(by_seed.mean("point").values)
    text = f"{str(values.name).replace('_', ' ')} with branches minus plain"
    return {
        "listening_change": (
            "point",
            by_seed.mean("seed").values,
            {"long_name": f"{text}, mean over seeds"},
        ),
        "listening_difference": ((), mean, {"long_name": f"{text}, mean over seeds and points"}),
        "listening_difference_low": ((), low, {"long_name": f"{text}, 95 % over seeds, from"}),
        "listening_difference_high": ((), high, {"long_name": f"{text}, 95 % over seeds, to"}),
    }


def _add_labels(experiment: xr.Dataset, work: Work, samples: SplitSamples) -> xr.Dataset:
    subject = work.subject
    settings = subject.settings
    for name, text in _LONG_NAMES.items():
        if name in experiment:
            experiment[name].attrs["long_name"] = text

    coordinates = {
        "arm": "with branches or without",
        "seed": "seed of batches, dropout and branches",
        "step": "optimizer updates before",
        "group": "group of held-out samples",
        "group_samples": "samples in the group",
        "trace_step": "optimizer updates before the gradients were read",
        "layer": "layer",
        "point": "attachment point",
    }
    for name, text in coordinates.items():
        if name in experiment.coords:
            experiment[name].attrs["long_name"] = text

    n_parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    is_default = settings.optimizer is None
    experiment.attrs = provenance(
        "resonance.examine",
        subject.model,
        optimizer="AdamW" if is_default else name_of(settings.optimizer),
        lr=default_learning_rate(n_parameters) if is_default else "as the optimizer was made",
        batch_size=work.sizes["batch_size"],
        n_train=samples.n_train,
        n_held_out=samples.n_held_out,
        held_out="given" if settings.holds_out_data else "of the same data",
        steps=work.sizes["steps"],
        n_seeds=experiment.sizes["seed"],
        alpha=describe_alpha(settings.alpha),
        n=settings.n,
        branch_loss="bce" if subject.branch_loss is None else name_of(subject.branch_loss),
        loss=subject.loss.name,
        seed=settings.seed,
        listening=_listening_reason(work) or "ridge regression on the features after training",
    )
    return experiment


def _listening_reason(work: Work) -> str:
    runs = [data for name, data in work.store.pieces.items() if name.startswith("run of ")]
    reasons = [run.attrs.get("listening_reason", "") for run in runs]
    return next((reason for reason in reasons if reason), "")


def _training_plan(sizes: dict[str, int]) -> TrainingPlan:
    steps = sizes["steps"]
    n_measured = min(sizes["measurements"], steps)
    measured_steps = sorted({round(steps * i / n_measured) for i in range(n_measured + 1)})
    return TrainingPlan(steps, tuple(measured_steps), sizes["trace_every"], sizes["batch_size"])


def _piece_of(arm: Arm, seed: int) -> str:
    return f"run of {arm} {seed}"
