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
    """Ask how a model responds to auxiliary branches, with every instrument that applies.

    The model is left bit for bit as it is: what must be trained is trained on copies. Each part has
    a share of the budget, from which follow the numbers of samples, points, products, updates and
    seeds. A part that does not apply, or fails, is in the tree with its reason, and stops no other.
    The training experiment comes last, and takes the time that the others leave. Ctrl-C ends the
    work and returns what is finished.

    Args:
        model: Any module, with the weights to be looked at.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches; see `resonance.take`.
        layers: Names or patterns of the layers that get branches, and of the blocks that are
            nudged; None takes the model's repeated blocks or stages.
        n: Branches per layer.
        alpha: Their strength: a number, a mapping, a schedule; see `probes.attach`.
        loss: The main loss, `(outputs, targets)`, one value per sample or their mean; or `(model,
            inputs, targets)`. By default what the targets ask for.
        budget: `"seconds"` (30 s), `"minutes"` (3 minutes), `"hour"`, or a number of seconds. The
            whole takes at most about twice as long, or much less if there is no more to measure.
        steps: Updates of the training experiment; None takes as many as there is time for, 8 to
            2000.
        seeds: Its repetitions, each with its own branches and order of batches; None takes 1 to 10.
            A number given is kept, however long it takes.
        samples: How many samples the measurements at the given weights draw at most; None: 500.
        parts: Some of "model", "response", "gradients", "landscape", "curvature", "attention",
            "nudging"; None takes all.
        optimizer: Makes the optimizer of a list of parameters; by default AdamW with a learning
            rate of 1e-3, and 1e-4 for models of ten million parameters and more.
        batch_size: Samples in an update; 32 if not given.
        held_out: Samples for the measurements after training, in any form of `data`. None holds
            back a quarter of `data`, at most 256 samples, and a number at most so many: not trained
            on here, but the given weights may have seen them.
        seed: Determines samples, branches, directions, and the first of `seeds`.
        checkpoint: A file for what is finished: the same call goes on from there after a kill.
        title: What the tree is about; by default the class of the model.

    Returns:
        Tree with `status`, `reason`, `seconds`, `call` and `warnings (part)` at its root, the
        verdict with its rule, its interval and what would change it in its attributes, and a node
        for each part that came to something:

        - `/model`: what was understood; `loss` and `accuracy` at the given weights;
        - `/response`: `loss`, `accuracy (arm, seed, step)` on held-out samples, plain and with
          branches, their differences paired by seed with 95 % intervals for other seeds and other
          held-out samples, the `cosine` of the gradients while training, `listening_accuracy`:
          what a linear head can read afterwards, whether the model makes use of it or not;
        - `/gradients` of `gradients.noise`; `/landscape` of `landscape.grid`, with `smoothness` and
          `dilution`; `/curvature` of `landscape.curvature`, with `critical_sharpness`;
          `/attention` of `attention.capture`, with `maps` and `sinks`; `/nudging` of
          `nudging.measure`, or `nudging.nudge`, for three credits.

        All `seconds`, and `preparation_seconds`, are those of a clock; two runs differ in them, and
        in `forward_seconds` of `/model`. The rest follows from the numbers of samples, updates and
        so on, which the first run with a `checkpoint` decides once.

        Save it by `tree.to_netcdf(path, engine="h5netcdf")`.

    Raises:
        TypeError, ValueError: If an argument does not fit, data give no samples, targets ask for no
            loss, or the checkpoint is of another run.

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
