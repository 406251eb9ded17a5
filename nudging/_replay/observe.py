from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nudging._replay.losses import choose_loss
from nudging._replay.observe_batch import observe_batch
from nudging._replay.setup import choose_blocks, make_setup
from nudging._replay.state import State
from resonance_toolkit import Loss


def observe(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    blocks: str | Sequence[str] | None = None,
    *,
    loss: Loss | None = None,
    full_pass_reason: str | None = None,
) -> State:
    """Run a model once on a batch, and record what a credit needs.

    The model runs in eval mode, without gradients, and is left as it was.

    Args:
        model: Any module. It is called with `inputs`: a tuple as positional arguments, a mapping as
            keywords, anything else as one argument.
        inputs: One batch, samples first, on the model's device.
        targets: What the loss compares the outputs with.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        loss: `(outputs, targets)` to one loss per sample; by default the one that the targets ask
            for. Means of torch are taken over each sample alone; with class weights, such that
            their mean over the batch is torch's.
        full_pass_reason: Why a change of one block needs a pass through the whole model. By
            default, a trial on two samples finds out. An empty string means that computing what
            follows a block is enough. Pass that of an earlier state of the same model to skip the
            trial.

    Returns:
        The state: `hidden`, `outputs`, `gradient()`, `replay(block, value)`.

    Raises:
        ValueError: If a block is unknown, did not run once, or the loss is not per sample.
        TypeError: If a block returns no tensor.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> state = observe(model, torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), "*")
        >>> state
        State(Sequential, 4 samples, 0, 1)
        >>> state.blocks, state.hidden["0"].shape
        (('0', '1'), torch.Size([4, 3]))
    """
    setup = make_setup(model, choose_blocks(model, blocks), choose_loss(loss, [targets]))

    # Torch's tools for nested tensors see into a dict only; a tokenizer gives another mapping.
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)

    # Gradients are asked for later, and tensors of inference mode have none.
    with torch.inference_mode(False):
        return observe_batch(setup, inputs, targets, full_pass_reason=full_pass_reason)
