"""The residual network of the credit audit: an embedding, pre-norm blocks, a norm and a head."""

import torch.nn.functional as F
from torch import Tensor, nn

# Where credit is measured: h_0 leaves the embedding, h_1 ... h_L leave the blocks.
LAYERS = ["embed", "blocks.*"]


class Block(nn.Module):
    """`h + W2 gelu(W1 norm(h))`; the branch without the skip is `branch(h)`."""

    def __init__(self, width: int, *, std: float = 0.01, skip: bool = True) -> None:
        super().__init__()
        self.skip = skip
        self.ln = nn.LayerNorm(width)
        self.w1 = nn.Linear(width, width)
        self.w2 = nn.Linear(width, width)

        # Small, so that a new block is nearly the identity.
        nn.init.normal_(self.w2.weight, std=std)
        nn.init.zeros_(self.w2.bias)

    def branch(self, h: Tensor) -> Tensor:
        """What the block adds to its input."""
        out: Tensor = self.w2(F.gelu(self.w1(self.ln(h))))
        return out

    def forward(self, h: Tensor) -> Tensor:
        """The block."""
        return h + self.branch(h) if self.skip else self.branch(h)


class ResMLP(nn.Module):
    """`head(norm(blocks(embed(image))))`, images flattened, no activation in the embedding.

    Args:
        classes: Number of logits.
        inputs: Numbers in one image.
        width: Of every hidden state.
        depth: Number of blocks.
        std: Standard deviation of the second weight of a block at initialisation. It is small, so
            that a new network is nearly the identity between embedding and norm.
        skip: False leaves the residual connections out.
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        inputs: int = 3072,
        width: int = 256,
        depth: int = 4,
        std: float = 0.01,
        skip: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(Block(width, std=std, skip=skip) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        hidden = self.blocks(self.embed(images.flatten(1)))
        logits: Tensor = self.head(self.norm(hidden))
        return logits
