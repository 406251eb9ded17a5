from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from torch import nn

from resonance_toolkit import Loss, devices_of, preserving_rng
from resonance_toolkit._front.examine.budget import Budget, Clock
from resonance_toolkit._front.examine.runner import run_parts
from resonance_toolkit._front.examine.settings import MakeOptimizer, Part, Settings, settle_parts
from resonance_toolkit._front.examine.store import Store
from resonance_toolkit._front.examine.subject import identify, understand


def examine(
    model: nn.Module,
    data: Any,
    *,
    layers: str | Sequence[str] | None = None,
    n: int = 20,
    alpha: Any = 1.0,
    loss: Loss | None = None,
    budget: Budget = "minutes",
    steps: int | None = None,
    seeds: int | None = None,
    samples: int | None = None,
    parts: Part | Sequence[Part] | None = None,
    optimizer: MakeOptimizer | None = None,
    batch_size: int | None = None,
    held_out: Any = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    title: str | None = None,
) -> xr.DataTree:
    """Measure how a model responds to auxiliary branches, with every instrument that applies.

    The model is left bit for bit as it is; copies of it are trained. Each part of the examination
    has a share of the budget, which determines its numbers of samples, points, products, updates
    and seeds. If a part does not apply or fails, the tree says why, and the other parts still run.
    The training experiment comes last and uses the time that the others leave. Ctrl-C ends the
    work and returns what is finished.

    Args:
        model: Any module, with the weights to examine.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches; see `resonance.take`.
        layers: Names or patterns of the layers that get branches, and of the blocks that are
            nudged; None takes the model's repeated blocks or stages.
        n: Branches per layer.
        alpha: Their strength: a number, a mapping, a schedule; see `probes.attach`.
        loss: The main loss: a function of `(outputs, targets)` that returns one value per sample or
            their mean; or of `(model, inputs, targets)`. By default, the targets decide.
        budget: `"seconds"` (30 s), `"minutes"` (3 minutes), `"hour"`, or a number of seconds. The
            examination takes at most about twice as long, and less if there is no more to measure.
        steps: Updates of the training experiment; None takes as many as there is time for, 8 to
            2000.
        seeds: How often the training experiment is repeated, each time with other branches and
            another order of batches; None takes 1 to 10. A number that you pass is kept, however
            long it takes.
        samples: How many samples the other measurements draw at most; None means 500.
        parts: Some of "model", "response", "gradients", "landscape", "curvature", "attention",
            "nudging"; None takes all.
        optimizer: A function that makes the optimizer for a list of parameters; by default AdamW
            with a learning rate of 1e-3, or 1e-4 for models of ten million parameters or more.
        batch_size: Samples in an update; 32 if not given.
        held_out: Samples for the measurements after training, in any form of `data`. None holds
            back a quarter of `data`, but at most 256 samples; a number holds back at most that
            many. The copies are not trained on these samples, but the weights that you pass may
            have been.
        seed: Determines samples, branches, directions, and the first of `seeds`.
        checkpoint: A file for finished parts. After a kill, the same call continues from it.
        title: Title of the tree; by default the class of the model.

    Returns:
        Tree whose root has `status`, `reason`, `seconds`, `call` and `warnings (part)`. Its
        attributes hold the verdict, with its rule, its interval and what would change it. There is
        a node for each part that has a result:

        - `/model`: how data and loss were understood; `loss` and `accuracy` at the weights given;
        - `/response`: `loss`, `accuracy (arm, seed, step)` on held-out samples, plain and with
          branches; their differences, paired by seed, with 95 % intervals that hold for other seeds
          and other held-out samples; the `cosine` of the gradients during training; and
          `listening_accuracy`, the accuracy of a linear head on each layer afterwards, whether the
          model uses that information or not;
        - `/gradients`: from `gradients.noise`;
        - `/landscape`: from `landscape.grid`, with `smoothness` and `dilution`;
        - `/curvature`: from `landscape.curvature`, with `critical_sharpness`;
        - `/attention`: from `attention.capture`, with `maps` and `sinks`;
        - `/nudging`: from `nudging.measure` or `nudging.nudge`, for three credits.

        `seconds`, `preparation_seconds`, and `forward_seconds` of `/model` are times, which differ
        between two runs. Everything else is determined by the numbers of samples, updates and so
        on. With a `checkpoint`, the first run decides these once.

        Save the tree by `tree.to_netcdf(path, engine="h5netcdf")`.

    Raises:
        TypeError, ValueError: If an argument does not fit, the data hold no samples, the targets do
            not determine a loss, or the checkpoint belongs to another run.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(40, 4), torch.arange(40) % 3
        >>> tree = examine(model, (x, y), parts=["model", "gradients"], n=2)
        >>> tree["status"].values.tolist(), sorted(tree.children)
        (['done', 'done'], ['gradients', 'model'])
        >>> tree.attrs["verdict"]
        'undecided'
    """
    settings = Settings(
        layers=layers,
        n=n,
        alpha=alpha,
        loss=loss,
        budget=budget,
        steps=steps,
        seeds=seeds,
        samples=samples,
        parts=settle_parts(parts),
        optimizer=optimizer,
        batch_size=batch_size,
        held_out=held_out,
        seed=seed,
        title=title,
    )
    settings.check()
    clock = Clock(settings.budget_seconds)

    subject = understand(model, data, settings)
    store = Store(checkpoint, {} if checkpoint is None else identify(subject))
    with preserving_rng(devices_of(model)):
        return run_parts(subject, store, clock)
