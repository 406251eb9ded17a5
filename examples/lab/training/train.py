"""One training run: a recipe becomes curves, gradient traces and attention statistics."""

import math
from pathlib import Path

import torch
import xarray as xr
from accelerate import Accelerator
from torch import nn

import attention
import gradients
from lab.data.batches import batches
from lab.training.checkpoint import restore, save
from lab.training.curves import assemble
from lab.training.epoch import group_rows, train_epoch
from lab.training.evaluate import evaluate
from lab.training.recipe import Recipe
from lab.training.run import Run
from lab.training.sharding import prepare
from resonance_toolkit import preserving_rng

ATTENTION_IMAGES = 32  # test images whose attention is measured


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
        run = _prepare_run(recipe)
        if checkpoint is not None:
            restore(run, checkpoint)

        for epoch in range(len(run.curves), recipe.epochs):
            # The epoch in which a run diverges is not kept.
            numbers_of_epoch = train_epoch(run, epoch) | evaluate(run)
            if not all(math.isfinite(value) for value in numbers_of_epoch.values()):
                break
            run.curves.append(numbers_of_epoch)

            n_finished = epoch + 1
            if n_finished in recipe.attention_epochs:
                run.attention[n_finished] = _capture_attention(run)

            # A finished run needs no checkpoint: whoever asked for it keeps the result.
            is_due = n_finished % every == 0 and n_finished < recipe.epochs
            if checkpoint is not None and is_due:
                save(run, checkpoint)

        for probe in (run.probe, run.unlabelled):
            if probe is not None:
                probe.detach()
    return assemble(run)


def _prepare_run(recipe: Recipe) -> Run:
    accelerator = Accelerator()
    images = recipe.images()

    torch.manual_seed(recipe.seed)
    model = recipe.model(images)
    if accelerator.device.type == "cpu" and accelerator.mixed_precision != "no":
        _unfuse_attention(model)

    # Branches are attached before the model is distributed, while its layers are whole.
    sample, _ = next(batches(images, "train", [torch.arange(2)]))
    steps = recipe.epochs * len(group_rows(recipe, images, 0, accelerator.num_processes))
    probe = recipe.probe(model, sample, steps)
    unlabelled = recipe.unlabelled_probe(model, sample, steps)
    branches = list(probe.parameters()) if probe else []

    optimizer = recipe.make_optimizer(list(model.parameters()))
    model, optimizer = prepare(accelerator, model, optimizer, branches)
    trace = gradients.Trace(model, every=recipe.trace_every) if recipe.trace_every else None
    return Run(recipe, images, accelerator, model, probe, optimizer, trace, unlabelled)


def _unfuse_attention(model: nn.Module) -> None:
    """Let timm's blocks multiply attention out.

    On a processor in bf16 the fused kernel's backward pass takes half of a step of the ViT-6L
    (torch 2.15): 0.67 s against 0.25 s multiplied out, batch 128, one thread.
    """
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False


def _capture_attention(run: Run) -> xr.Dataset:
    count = min(ATTENTION_IMAGES, len(run.images.y_test))
    x, _ = next(batches(run.images, "test", [torch.arange(count)]))
    return attention.capture(run.backbone, x.to(run.accelerator.device), maps=True)
