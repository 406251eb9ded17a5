"""One training run: a recipe becomes curves, gradient traces and attention statistics."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import xarray as xr
from accelerate import Accelerator
from torch import Tensor, nn

import attention
import gradients
from gradients.accelerate import backward
from lab.data.batches import batches
from lab.data.images import Images
from lab.training.checkpoint import restore, save
from lab.training.curves import assemble
from lab.training.recipe import Recipe
from lab.training.sharding import prepare, share_buffers
from probes import Probe
from probes.schedules import Adaptive
from resonance_toolkit import evaluating, preserving_rng

SEEN = 32  # test images whose attention is measured
_EVALUATED = 250  # test images in a forward pass


@dataclass
class Run:
    """What a run is made of, and what it has measured so far."""

    recipe: Recipe
    images: Images
    accelerator: Accelerator
    model: nn.Module
    probe: Probe | None
    optimizer: Any
    trace: gradients.Trace | None
    epochs: list[dict[str, float]] = field(default_factory=list)
    traces: list[xr.Dataset] = field(default_factory=list)
    seen: dict[int, xr.Dataset] = field(default_factory=dict)

    @property
    def backbone(self) -> nn.Module:
        """The model without what distributes it."""
        found: nn.Module = self.accelerator.unwrap_model(self.model)
        return found

    def traced(self) -> list[xr.Dataset]:
        """Gradient measurements, a piece for each part of a run that was interrupted."""
        latest = [self.trace.to_dataset()] if self.trace else []
        # An empty piece knows neither its losses nor, once written, its shape.
        return [piece for piece in [*self.traces, *latest] if piece.sizes["step"]]


def train(recipe: Recipe, *, checkpoint: Path | None = None, every: int = 10) -> xr.Dataset:
    """Train by a recipe; the same recipe gives the same result.

    Under `accelerate launch` each process takes its part of every batch: the gradients are those
    of the whole batch, however many processes there are, and whether each holds all weights or
    (FSDP, version 2) a shard of them. Precision is the launcher's, too. A loss, in training or on
    the test images, that is no longer finite ends the run: `diverged` is 1, and that epoch and
    what would have come are NaN.

    Args:
        recipe: What to do. The global random state is left as it was.
        checkpoint: A file that holds the unfinished run, from which it goes on if it is there.
        every: Epochs between writing it.

    Returns:
        Dataset with `train_loss`, `train_accuracy`, `auxiliary_loss` (of the batches as they
        come), `test_loss`, `test_accuracy`, `learning_rate (epoch)`; `diverged`; with
        `trace_every`, what `gradients.Trace` records, its layers as `traced_layer`; with
        `attention_epochs`, what `attention.capture` finds for some test images `(seen_epoch, ...)`.
    """
    with preserving_rng():
        run = _prepare(recipe)
        if checkpoint is not None:
            restore(run, checkpoint)
        for epoch in range(len(run.epochs), recipe.epochs):
            measured = _train_epoch(run, epoch) | _evaluate(run)
            if not all(map(_finite, measured.values())):
                break
            run.epochs.append(measured)
            if epoch + 1 in recipe.attention_epochs:
                x, _ = next(batches(run.images, "test", [torch.arange(_shown(run))]))
                x = x.to(run.accelerator.device)
                run.seen[epoch + 1] = attention.capture(run.backbone, x, maps=True)
            if checkpoint is not None and (epoch + 1) % every == 0 and epoch + 1 < recipe.epochs:
                save(run, checkpoint)
        if run.probe is not None:
            run.probe.detach()
    return assemble(run)


def _prepare(recipe: Recipe) -> Run:
    accelerator = Accelerator()
    images = recipe.images()
    torch.manual_seed(recipe.seed)
    model = recipe.model(images)
    sample, _ = next(batches(images, "train", [torch.arange(2)]))
    steps = recipe.epochs * len(_groups(recipe, images, 0, accelerator.num_processes))
    probe = recipe.probe(model, sample, steps)
    branches = list(probe.parameters()) if probe else []
    optimizer = recipe.make_optimizer(list(model.parameters()))
    model, optimizer = prepare(accelerator, model, optimizer, branches)
    trace = gradients.Trace(model, every=recipe.trace_every) if recipe.trace_every else None
    return Run(recipe, images, accelerator, model, probe, optimizer, trace)


def _train_epoch(run: Run, epoch: int) -> dict[str, float]:
    recipe, accelerator = run.recipe, run.accelerator
    seed = 1000 * recipe.seed + epoch  # a run that is resumed draws the same
    rank, ranks = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(ranks * seed + rank)  # dropout
    groups = _groups(recipe, run.images, seed, ranks)
    mine = [group.tensor_split(ranks)[rank] for group in groups]
    drawn = batches(run.images, "train", mine, augment=recipe.augment, seed=ranks * seed + rank)
    sums = torch.zeros(4, dtype=torch.float64)
    run.model.train()
    for step, (group, (x, y)) in enumerate(zip(groups, drawn, strict=True)):
        for options in run.optimizer.param_groups:
            options["lr"] = recipe.rate(epoch + (step + 0.5) / len(groups))
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        share = ranks * len(y) / len(group)  # so that the mean over processes is the batch's
        losses, logits = _losses(run, x, y)
        if run.trace is not None:
            backward(accelerator, run.trace, *(share * loss for loss in losses))
        else:
            accelerator.backward(share * sum(losses))
        if recipe.clip:
            accelerator.clip_grad_norm_(run.model.parameters(), recipe.clip)
        run.optimizer.step()
        run.optimizer.zero_grad()
        hits = (logits.detach().argmax(1) == y).sum()
        means = [loss.detach().double() * len(y) for loss in losses]
        parts = [means[0], means[1] if len(means) > 1 else means[0], hits, hits * 0 + len(y)]
        sums += torch.stack([part.double() for part in parts]).cpu()
    main, auxiliary, correct, count = _added(run, sums)
    return {
        "train_loss": main / count,
        "auxiliary_loss": auxiliary / count,
        "train_accuracy": correct / count,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
    }


def _losses(run: Run, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    with run.accelerator.autocast():
        logits = run.model(x)
        main = F.cross_entropy(logits, y, label_smoothing=run.recipe.label_smoothing)
    if run.probe is None or not run.probe.connected:
        return [main], logits
    adaptive = isinstance(run.probe.strength, Adaptive)
    return [main, run.probe.loss(y, main=main if adaptive else None)], logits


@torch.no_grad()
def _evaluate(run: Run) -> dict[str, float]:
    rank, ranks = run.accelerator.process_index, run.accelerator.num_processes
    groups = torch.arange(len(run.images.y_test)).split(ranks * _EVALUATED)
    mine = [group.tensor_split(ranks)[rank] for group in groups]
    # Shards are gathered at each pass, so all make equally many: for want of images, of another's.
    rows = [own if len(own) else group[:1] for own, group in zip(mine, groups, strict=True)]
    sums = torch.zeros(3, dtype=torch.float64)
    share_buffers(run.backbone)
    with evaluating(run.backbone):
        for own, (x, y) in zip(mine, batches(run.images, "test", rows), strict=True):
            logits = run.backbone(x.to(run.accelerator.device)).float().cpu()[: len(own)]
            y = y[: len(own)]
            sums[0] += F.cross_entropy(logits, y, reduction="sum").double()
            sums[1] += (logits.argmax(1) == y).sum()
            sums[2] += len(y)
    loss, correct, count = _added(run, sums)
    return {"test_loss": loss / count, "test_accuracy": correct / count}


def _groups(recipe: Recipe, images: Images, seed: int, ranks: int) -> list[Tensor]:
    """Rows of each batch; a last one too small for batch statistics is left out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images.y_train), generator=generator)
    return [rows for rows in order.split(recipe.batch) if len(rows) >= min(2 * ranks, len(order))]


def _added(run: Run, sums: Tensor) -> list[float]:
    device = run.accelerator.device
    total = run.accelerator.reduce(sums.to(device, torch.float32 if device.type == "mps" else None))
    found: list[float] = total.tolist()
    return found


def _shown(run: Run) -> int:
    return min(SEEN, len(run.images.y_test))


def _finite(value: float) -> bool:
    return abs(value) < float("inf")  # NaN compares false
