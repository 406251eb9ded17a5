"""Whether a change of one block can be followed by running only the modules after it.

A *full pass* runs the whole model, and a hook changes the block's output on the way. A *replay*
takes recorded outputs for everything that ended before the block, and computes what follows. Both
agree in any model whose modules see no more than the tensors that they are called with. They
differ where an earlier module leaves a note elsewhere (an attribute, a closure) that a later one
reads: then only full passes are right.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nudging._replay.nests import pick_samples
from nudging._replay.record import record_state
from nudging._replay.state import State

# Size of the trial change, relative to the mean size of the block's output: large enough to be
# seen in the loss in half precision, small enough to stay where the model works.
_TRIAL_STEP = 0.1


@torch.no_grad()
def reason_for_full_passes(state: State) -> str:
    """Say why replays would be wrong; an empty string if they are right.

    On two samples of the batch, the output of each block is changed at random, and the losses after
    a replay are compared with those after a full pass, bit by bit. On the way, the losses of the
    two samples alone are compared with those that they have in their batch.

    Raises:
        ValueError: If a sample's loss depends on the samples around it, or the model needs them.
    """
    losses_in_batch = state.losses()

    # The two of largest loss: where the loss is next to nothing, no difference could be seen.
    loss_sizes = losses_in_batch.nan_to_num(0.0, 0.0, 0.0).abs()
    rows = loss_sizes.topk(min(2, len(state))).indices
    if len(state) == 2:
        rows = rows[[0, 1, 0]]  # three, since two would be the batch itself

    by_replay = _record_some(state, rows)
    by_full_pass = replace(by_replay, full_pass_reason="to compare")
    _check_independence(by_replay.losses(), losses_in_batch[rows])

    generator = torch.Generator().manual_seed(0)
    for name, hidden in by_replay.hidden.items():
        noise = torch.randn(hidden.shape, generator=generator, device="cpu").to(hidden)
        changed = hidden + _TRIAL_STEP * (hidden.abs().mean() or 1.0) * noise

        replayed_losses = by_replay.losses(by_replay.replay(name, changed))
        true_losses = by_full_pass.losses(by_full_pass.replay(name, changed))
        if not _are_same(replayed_losses, true_losses):
            return f"what follows {name} depends on more than the outputs of its modules"
    return ""


def _record_some(state: State, rows: Tensor) -> State:
    inputs, targets = pick_samples((state.inputs, state.targets), rows)
    try:
        return record_state(state._setup, inputs, targets)
    except RuntimeError as error:
        raise ValueError(
            f"`data`: the model runs on a batch of {len(state)} samples, but not on {len(rows)} of "
            f"them ({error}); samples that belong together, such as the nodes of one graph, cannot "
            "be measured one by one: give whole graphs as samples, (graph, node, feature), which "
            "neither `samples` nor `batch_size` cuts"
        ) from error


def _are_same(left: Tensor, right: Tensor) -> bool:
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _check_independence(losses_alone: Tensor, losses_in_batch: Tensor) -> None:
    # Batches of other sizes are summed in another order: half of the digits have to agree.
    tolerance = torch.finfo(losses_alone.dtype).eps ** 0.5 * losses_in_batch.abs().max()

    if ((losses_alone - losses_in_batch).abs() > tolerance).any():
        raise ValueError(
            "`loss`: expected a loss of each sample by itself, but that of one is "
            f"{losses_alone[0]:.6g} among few samples and {losses_in_batch[0]:.6g} in its batch; "
            "the loss or the model depends on the whole batch (or on random numbers drawn for it)"
        )
