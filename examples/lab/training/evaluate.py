"""Loss and accuracy on the test images, each process with its part of them."""

import torch
import torch.nn.functional as F

from lab.data.batches import batches
from lab.training.run import Run
from lab.training.sharding import share_buffers
from resonance_toolkit import evaluating

IMAGES_PER_PASS = 250  # in one process


@torch.no_grad()
def evaluate(run: Run) -> dict[str, float]:
    """Return the means over all test images."""
    rank, ranks = run.accelerator.process_index, run.accelerator.num_processes
    groups = torch.arange(len(run.images.y_test)).split(ranks * IMAGES_PER_PASS)
    own_rows = [group.tensor_split(ranks)[rank] for group in groups]

    # Weights that are sharded are gathered at each pass, so all processes make equally many: one
    # without images of its own passes the group's first, and leaves it out of the sums.
    passed_rows = [
        rows if len(rows) else group[:1] for rows, group in zip(own_rows, groups, strict=True)
    ]

    sums = torch.zeros(3, dtype=torch.float64)
    share_buffers(run.backbone)
    with evaluating(run.backbone):
        test_batches = batches(run.images, "test", passed_rows)
        for rows, (x, y) in zip(own_rows, test_batches, strict=True):
            with run.accelerator.autocast():
                logits = run.backbone(x.to(run.accelerator.device))
            logits = logits.float().cpu()
            logits, y = logits[: len(rows)], y[: len(rows)]

            sums[0] += F.cross_entropy(logits, y, reduction="sum").double()
            sums[1] += (logits.argmax(1) == y).sum()
            sums[2] += len(y)

    loss, correct, count = run.sum_over_processes(sums)
    return {"test_loss": loss / count, "test_accuracy": correct / count}
