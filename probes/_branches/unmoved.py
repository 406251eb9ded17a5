"""Notice active branches that nobody trains, because the optimizer was not given them.

The rule compares branches with their model. An optimizer step changes a parameter in place, which
torch counts (`_version`). If the model was seen to move between losses, twice, and the branches
have gradients but have never moved, the optimizer does not know them. Micro-batches that are
accumulated move neither; branches frozen by `requires_grad_(False)` get no gradients. Where the
whole model is frozen there is nothing to compare with: only many losses without a move tell.
"""

from collections.abc import Iterable

from torch import nn

# How often the model moves first: a single move may be a slip, such as weights loaded in between.
_MODEL_MOVES = 2

# More micro-batches than anybody accumulates.
_LOSSES_OF_A_FROZEN_MODEL = 1000

ADVICE = (
    "the active branches get gradients, but no optimizer moves them: give it probe.parameters() "
    "beside model.parameters(); or attach with active=0 if they are to stay as they are"
)


class MovementWatch:
    """Compares, at every loss, how often branches and model have been changed."""

    def __init__(self, branch_parameters: Iterable[nn.Parameter]) -> None:
        self.branch_version = _count_changes(p for p in branch_parameters if p.requires_grad)
        self.model_version: int | None = None
        self.n_model_moves = 0
        self.n_losses = 0
        self.is_over = False

    def finds_unmoved(
        self, branch_parameters: Iterable[nn.Parameter], model_parameters: Iterable[nn.Parameter]
    ) -> bool:
        """Tell, once, that an optimizer has moved the model and never the branches."""
        if self.is_over:
            return False

        parameters = [p for p in branch_parameters if p.requires_grad]
        if not parameters or _count_changes(parameters) != self.branch_version:
            self.is_over = True
            return False

        trained_parameters = [p for p in model_parameters if p.requires_grad]
        version = _count_changes(trained_parameters)
        if self.model_version is not None and version != self.model_version:
            self.n_model_moves += 1
        self.model_version = version
        self.n_losses += 1

        is_frozen = not trained_parameters
        has_waited = (
            self.n_losses > _LOSSES_OF_A_FROZEN_MODEL
            if is_frozen
            else self.n_model_moves >= _MODEL_MOVES
        )
        self.is_over = has_waited and all(p.grad is not None for p in parameters)
        return self.is_over


def _count_changes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter._version for parameter in parameters)
