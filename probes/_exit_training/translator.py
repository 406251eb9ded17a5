"""What a tuned lens puts before the model's own head: an affine map of a layer's features.

Belrose et al. (2023), "Eliciting Latent Predictions from Transformers with the Tuned Lens". At
first the map is the identity, which makes it the logit lens. It alone is trained: the layer's
output is given to it without a graph, and the head's parameters need no gradient meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probes._model.pooling import LayerOutput, resolve_pool


class Translator(nn.Module):
    """`h + A h + b` for the features `h` at every place, with A and b zero at first."""

    def __init__(self, width: int, axis: int, template: Tensor) -> None:
        super().__init__()
        self.axis = axis

        # Trained in float32 at least, as heads are.
        dtype = torch.promote_types(template.dtype, torch.float32)
        self.weight = nn.Parameter(torch.zeros(width, width, dtype=dtype, device=template.device))
        self.bias = nn.Parameter(torch.zeros(width, dtype=dtype, device=template.device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Translate `hidden`, and give it back in its own precision."""
        h = hidden.to(self.weight.dtype).movedim(self.axis, -1)
        translated = h + F.linear(h, self.weight, self.bias)
        return translated.movedim(-1, self.axis).to(hidden.dtype)


def new_translator(hidden: Tensor, layer: str, root: nn.Module) -> Translator:
    """Make the identity for a layer's output; its features are the axis that pooling would keep."""
    output = LayerOutput(hidden, layer, root.get_submodule(layer))
    axis = resolve_pool("spatial", output, root).channel
    return Translator(hidden.shape[axis], axis, hidden)


@contextmanager
def keeping_parameters_out(root: nn.Module) -> Iterator[None]:
    """Let a graph be recorded in which no parameter of the model takes part."""
    trained_parameters = [p for p in root.parameters() if p.requires_grad]

    try:
        for parameter in trained_parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained_parameters:
            parameter.requires_grad_(True)
