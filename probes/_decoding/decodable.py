"""What decoding asks of a language model, and whether a model offers it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from resonance_toolkit import is_sharded


class DecodableLayer(Protocol):
    """One layer, in two parts: what later positions need of this one, and its own output."""

    def project(self, x: Tensor, positions: Tensor, /) -> tuple[Tensor, ...]:
        """Keys and values, each `(1, ..., position, feature)`, of inputs `(1, position, width)`."""

    def attend(self, x: Tensor, positions: Tensor, /, *cache: Tensor) -> Tensor:
        """Outputs `(1, position, width)` at the last positions of the cache, causally.

        `cache` holds what `project` returned, from position 0 up to the last of `positions`.
        """


class Decodable(Protocol):
    """What `probes.generate` asks of a causal language model: these names, no base class.

    Attributes:
        layers: The blocks in forward order, each a module with `project` and `attend`.
    """

    layers: Sequence[DecodableLayer]

    def embed(self, ids: Tensor, positions: Tensor, /) -> Tensor:
        """Inputs `(1, position, width)` of the first layer, for tokens `(1, position)`."""

    def head(self, hidden: Tensor, /) -> Tensor:
        """Logits `(1, position, vocabulary)` of any layer's output."""


def as_decodable(model: nn.Module) -> Decodable:
    """Return the model itself, once it is known to offer what decoding needs.

    Raises:
        TypeError: If something is missing; the text says what.
        ValueError: If the model is sharded.
    """
    missing_names = _missing_names(model)
    if missing_names:
        raise TypeError(
            "`model`: expected a probes.Decodable (embed, head, and layers that offer project and "
            f"attend), got a {type(model).__name__} without {', '.join(missing_names)}"
        )

    # The parts of the model are called by themselves, where nothing gathers their parameters.
    if is_sharded(model):
        raise ValueError(
            "`model`: expected whole parameters, got some that fully_shard has split; decode with "
            "a copy that has the full state dict"
        )
    return model  # type: ignore[return-value]  # just checked


def _missing_names(model: nn.Module) -> list[str]:
    missing_names = [name for name in ("embed", "head") if not callable(getattr(model, name, None))]

    layers = getattr(model, "layers", None)
    if not isinstance(layers, Sequence | nn.ModuleList | nn.Sequential) or not len(layers):
        return [*missing_names, "layers"]

    missing_methods = [
        f"layers.{index}.{method}"
        for index, layer in enumerate(layers)
        for method in ("project", "attend")
        if not callable(getattr(layer, method, None))
    ]
    return missing_names + missing_methods
