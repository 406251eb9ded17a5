import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from resonance_toolkit import preserving_rng

# Called as `init(weight, generator)`: fills `weight (class, width)` from the generator, in place.
Init = Callable[[Tensor, torch.Generator], object]


def draw_branches(
    layer: str, seed: int, count: int, classes: int, width: int, init: Init
) -> Iterator[Tensor]:
    """Draw the weights of a layer's branches one by one, `(class, width)` each.

    Keyed by seed and layer name, on the CPU: the same on every device and rank, whatever other
    layers are attached; and the first branches are the same for every count. In float64, so that
    sums over branches are exact in the model's precision.
    """
    key = hashlib.sha256(f"{seed}:{layer}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(key[:8], "big") % 2**63)
    for _ in range(count):
        weight = torch.empty(classes, width, dtype=torch.float64, device="cpu")
        with preserving_rng():  # a callable may draw from the global generator
            init(weight, generator)
        yield weight


def orthogonal(weight: Tensor, generator: torch.Generator) -> None:
    """Orthonormal rows; orthonormal columns where there are more classes than features."""
    nn.init.orthogonal_(weight, generator=generator)


def normal(weight: Tensor, generator: torch.Generator) -> None:
    """Gaussian entries of the variance that orthogonal ones have."""
    nn.init.normal_(weight, std=1 / math.sqrt(max(weight.shape)), generator=generator)


def default(weight: Tensor, generator: torch.Generator) -> None:
    """What `nn.Linear` starts from."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


INITS: dict[str, Init] = {"orthogonal": orthogonal, "normal": normal, "default": default}
