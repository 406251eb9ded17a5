"""What a ResMLP minimises in one step: local objectives, or everything end to end.

With hidden states h_0 (embedding) ... h_L and credits a_0 ... a_L, block l minimises the mean over
the batch of `<f_l(h_l), a_l> + penalty * |f_l(h_l)|^2`, where f_l is its residual branch, and both
h_l and a_l are constants. The embedding minimises `<h_0, a_0>`, norm and head the cross-entropy.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.backbones.resmlp import ResMLP


@dataclass(frozen=True)
class Step:
    """What a credit rule looks at in a `nudging.State`, from the training step's own pass.

    Attributes:
        model: The network.
        blocks: Names of embedding and blocks, in order.
        targets: Classes of the batch.
        hidden: The state that leaves each of `blocks`, constant.
        outputs: The logits, constant.
    """

    model: ResMLP
    blocks: tuple[str, ...]
    targets: Tensor
    hidden: dict[str, Tensor]
    outputs: Tensor

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the cross-entropy of each image."""
        return F.cross_entropy(outputs, self.targets, reduction="none")

    def replay(self, block: str, value: Tensor) -> Tensor:
        """Return the logits for another terminal state."""
        if block != self.blocks[-1]:
            raise ValueError(f"`block`: expected {self.blocks[-1]!r}, the last, got {block!r}")
        logits: Tensor = self.model.head(self.model.norm(value))
        return logits


def run_locally(model: ResMLP, x: Tensor, y: Tensor) -> tuple[Step, list[Tensor]]:
    """Make one pass in which no gradient crosses a block.

    Returns:
        What credit rules look at; and the output of the embedding and of each branch, with graphs
        that end at their own inputs.
    """
    embedding = model.embed(x.flatten(1))
    parts = [embedding]
    states = [embedding.detach()]

    for block in model.blocks:
        branch = block.branch(states[-1])
        parts.append(branch)

        update = branch.detach()
        states.append(states[-1] + update if block.skip else update)

    with torch.no_grad():
        outputs = model.head(model.norm(states[-1]))

    names = ("embed", *(f"blocks.{index}" for index in range(len(model.blocks))))
    hidden = dict(zip(names, states, strict=True))
    return Step(model, names, y, hidden, outputs), parts


def local_objective(
    step: Step, parts: list[Tensor], credit: dict[str, Tensor], *, penalty: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy, and the sum of all local objectives.

    Args:
        step: Of this step.
        parts: Embedding and branches, with their graphs.
        credit: One tensor for each of `step.blocks`. That of h_l trains block l, that of h_0 the
            embedding as well; the last is not used.
        penalty: Lambda; summed over features, averaged over the batch.
        normalise: Divide each image's credit by its root mean square.
    """
    credits = [credit[name] for name in step.blocks]
    if normalise:
        credits = [a / (a.square().mean(1, keepdim=True).sqrt() + 1e-6) for a in credits]

    last_block = step.blocks[-1]
    logits = step.replay(last_block, step.hidden[last_block])
    cross_entropy = F.cross_entropy(logits, step.targets)

    # h_0 is the output of the embedding and the input of the first block: a_0 trains both.
    pairs = zip(parts, [credits[0], *credits[:-1]], strict=True)
    inner_products = torch.stack([(part * a).sum(1).mean() for part, a in pairs]).sum()

    branches = parts[1:]
    objective = cross_entropy + inner_products + penalty * _mean_square_norm(branches)
    return cross_entropy.detach(), objective


def end_to_end_objective(
    model: ResMLP, x: Tensor, y: Tensor, *, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy, and cross-entropy plus penalties, for backprop."""
    h = model.embed(x.flatten(1))
    branches = []
    for block in model.blocks:
        branch = block.branch(h)
        branches.append(branch)
        h = h + branch if block.skip else branch

    cross_entropy = F.cross_entropy(model.head(model.norm(h)), y)
    return cross_entropy.detach(), cross_entropy + penalty * _mean_square_norm(branches)


def _mean_square_norm(branches: list[Tensor]) -> Tensor:
    """Return the squared norm of each branch, averaged over images, summed over branches."""
    return torch.stack([branch.square().sum(1).mean() for branch in branches]).sum()
