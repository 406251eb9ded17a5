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
    """What a credit rule looks at in a `nudging.State`, from the training step's own pass."""

    model: ResMLP
    blocks: tuple[str, ...]
    targets: Tensor
    hidden: dict[str, Tensor]
    outputs: Tensor

    def losses(self, outputs: Tensor) -> Tensor:
        """The cross-entropy of each image."""
        return F.cross_entropy(outputs, self.targets, reduction="none")

    def rest(self, block: str, value: Tensor) -> Tensor:
        """The logits for another terminal state."""
        if block != self.blocks[-1]:
            raise ValueError(f"`block`: expected {self.blocks[-1]!r}, the last, got {block!r}")
        logits: Tensor = self.model.head(self.model.norm(value))
        return logits


def forward(model: ResMLP, x: Tensor, y: Tensor) -> tuple[Step, list[Tensor]]:
    """One pass in which no gradient crosses a block; gives embedding and branches, too."""
    parts = [model.embed(x.flatten(1))]
    states = [parts[0].detach()]
    for block in model.blocks:
        parts.append(block.branch(states[-1]))
        branch = parts[-1].detach()
        states.append(states[-1] + branch if block.skip else branch)
    with torch.no_grad():
        outputs = model.head(model.norm(states[-1]))
    names = ("embed", *(f"blocks.{i}" for i in range(len(model.blocks))))
    hidden = dict(zip(names, states, strict=True))
    return Step(model, names, y, hidden, outputs), parts


def local(
    state: Step, parts: list[Tensor], credit: dict[str, Tensor], *, penalty: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and the sum of all local objectives.

    Args:
        state: Of this step.
        parts: Embedding and branches, with their graphs.
        credit: One tensor for each of `state.blocks`. That of h_l trains block l, that of h_0 the
            embedding as well; the last is not used.
        penalty: Lambda; summed over features, averaged over the batch.
        normalise: Divide each image's credit by its root mean square.
    """
    credits = [credit[name] for name in state.blocks]
    if normalise:
        credits = [a / (a.square().mean(1, keepdim=True).sqrt() + 1e-6) for a in credits]
    loss = F.cross_entropy(
        state.rest(state.blocks[-1], state.hidden[state.blocks[-1]]), state.targets
    )
    pairs = zip(parts, [credits[0], *credits[:-1]], strict=True)
    follow = torch.stack([(part * a).sum(1).mean() for part, a in pairs]).sum()
    return loss.detach(), loss + follow + penalty * _size(parts[1:])


def end_to_end(model: ResMLP, x: Tensor, y: Tensor, *, penalty: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and cross-entropy plus penalties, for backprop."""
    h, branches = model.embed(x.flatten(1)), []
    for block in model.blocks:
        branches.append(block.branch(h))
        h = h + branches[-1] if block.skip else branches[-1]
    loss = F.cross_entropy(model.head(model.norm(h)), y)
    return loss.detach(), loss + penalty * _size(branches)


def _size(branches: list[Tensor]) -> Tensor:
    return torch.stack([branch.square().sum(1).mean() for branch in branches]).sum()
