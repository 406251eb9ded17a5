"""One pass over the training images, each process with its part of every batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gradients.accelerate import backward
from lab.data.batches import batches
from lab.data.images import Images
from lab.training.recipe import Recipe
from lab.training.run import Run
from probes.schedules import Adaptive


def train_epoch(run: Run, epoch: int) -> dict[str, float]:
    """Train for one epoch, and return the means over its images as they came."""
    recipe = run.recipe
    accelerator = run.accelerator
    rank, ranks = accelerator.process_index, accelerator.num_processes

    # Seeded by the epoch, so that a run that is resumed draws what it would have drawn.
    seed = 1000 * recipe.seed + epoch
    rank_seed = ranks * seed + rank
    torch.manual_seed(rank_seed)  # of dropout

    groups = group_rows(recipe, run.images, seed, ranks)
    own_rows = [group.tensor_split(ranks)[rank] for group in groups]
    own_batches = batches(run.images, "train", own_rows, augment=recipe.augment, seed=rank_seed)

    sums = torch.zeros(4, dtype=torch.float64)
    run.model.train()
    for step, (group, (x, y)) in enumerate(zip(groups, own_batches, strict=True)):
        # The rate in the middle of the step.
        for parameter_group in run.optimizer.param_groups:
            parameter_group["lr"] = recipe.rate(epoch + (step + 0.5) / len(groups))

        x, y = x.to(accelerator.device), y.to(accelerator.device)
        losses, logits = _compute_losses(run, x, y)

        # Processes average their gradients. Parts of a batch may be unequal: weighted by its share,
        # each process contributes so that the average is the gradient of the whole batch.
        share = ranks * len(y) / len(group)
        _update(run, [share * loss for loss in losses])

        sums += _sum_batch(losses, logits, y)

    main, auxiliary, correct, count = run.sum_over_processes(sums)
    return {
        "train_loss": main / count,
        "auxiliary_loss": auxiliary / count,
        "train_accuracy": correct / count,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
    }


def group_rows(recipe: Recipe, images: Images, seed: int, ranks: int) -> list[Tensor]:
    """Draw the rows of each batch; a last one too small for batch statistics is left out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images.y_train), generator=generator)

    # Batch norm needs two images in every process.
    fewest = min(2 * ranks, len(order))
    return [rows for rows in order.split(recipe.batch) if len(rows) >= fewest]


def _compute_losses(run: Run, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the main loss, with branches the auxiliary one as well, and the logits."""
    with run.accelerator.autocast():
        logits = run.model(x)
        main = F.cross_entropy(logits, y, label_smoothing=run.recipe.label_smoothing)

    if run.probe is None or not run.probe.connected:
        return [main], logits

    # Only rules that adapt the strength look at the main loss.
    is_adaptive = isinstance(run.probe.strength, Adaptive)
    auxiliary = run.probe.loss(y, main=main if is_adaptive else None)

    if run.unlabelled is not None:
        auxiliary = auxiliary + run.unlabelled.loss(torch.zeros_like(logits, dtype=torch.float32))
    return [main, auxiliary], logits


def _update(run: Run, losses: list[Tensor]) -> None:
    if run.trace is not None:
        backward(run.accelerator, run.trace, *losses)
    else:
        run.accelerator.backward(sum(losses))

    if run.recipe.clip:
        run.accelerator.clip_grad_norm_(run.model.parameters(), run.recipe.clip)
    run.optimizer.step()
    run.optimizer.zero_grad()


def _sum_batch(losses: list[Tensor], logits: Tensor, y: Tensor) -> Tensor:
    """Return main loss and auxiliary loss, summed over images, correct answers, and images.

    Without branches the main loss stands in for the auxiliary one, which nobody reads then.
    """
    correct = (logits.detach().argmax(1) == y).sum()
    loss_sums = [loss.detach().double() * len(y) for loss in losses]

    # One tensor, so that the device is waited for once.
    parts = [loss_sums[0], loss_sums[-1], correct, torch.full_like(correct, len(y))]
    return torch.stack([part.double() for part in parts]).cpu()
