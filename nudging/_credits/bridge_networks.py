"""What a bridge is made of: networks that fit the blocks of one model, and their files.

The networks are built by the first batch that the bridge is trained on, which tells the blocks,
their width and the number of classes:

    StateBridge(...)  --fit or update-->  networks built, then trained  --call-->  credits
         |                                       ^
         +------------ load_state_dict ----------+
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
import xarray as xr
from torch import Tensor

from nudging._credits.credit import list_settings
from nudging._credits.network import BridgeNetwork, NetworkSettings
from nudging._credits.output_error import output_error
from nudging._credits.positions import as_rows
from nudging._credits.saving import check_kind, check_settings, read_saved, to_dataset
from nudging._replay.state import State
from resonance_toolkit import check_positive, check_whole


class BridgeNetworks(ABC):
    """Settings, networks, and what they take; without their training.

    Attributes:
        settings: The arguments, by name.
        blocks: What it is fitted for; empty before.
        shape: `width`, `classes` and `pooled` of `NetworkSettings`; empty before it is fitted.
        net: The network that is trained.
        optimizer: Made at the first update.
    """

    parts: ClassVar[Sequence[str]] = ("net",)  # names of the networks to be saved

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in ("hidden", "layers", "times"):
            settings[name] = check_whole(name, settings[name])
        if settings["times"] % 2:
            raise ValueError(f"`times`: expected an even number, got {settings['times']}")
        check_positive("lr", settings["lr"])
        check_whole("seed", settings["seed"], at_least=None)

        self.settings = settings
        self.blocks: list[str] = []
        self.shape: dict[str, Any] = {}
        self.net: BridgeNetwork
        self.optimizer: torch.optim.Optimizer | None = None

    def __repr__(self) -> str:
        fitted = f"fitted for {', '.join(self.blocks)}" if self.blocks else "not fitted"
        return f"<{type(self).__name__}({list_settings(self.settings)}), {fitted}>"

    @abstractmethod
    def _build_networks(self) -> None:
        """Make the networks for `self.shape`."""

    def _make_network(self, outputs: int) -> BridgeNetwork:
        sizes = {name: self.settings[name] for name in ("hidden", "layers", "times", "seed")}
        return BridgeNetwork(NetworkSettings(**self.shape, **sizes), outputs=outputs)

    def _read_signal(self, state: State, *, may_build: bool = False) -> Tensor:
        """Return the output error of every sample, once the state is known to fit the bridge.

        The networks are moved to where the state is; `may_build` makes them if there are none.
        """
        signal = output_error(state)
        shape = _shape_of(state, signal)

        if not self.blocks:
            if not may_build:
                raise ValueError(f"`credit`: this {type(self).__name__} is not fitted; call `fit`")
            if len(state.blocks) < 2:
                raise ValueError(
                    f"`blocks`: a bridge expects two or more, got {list(state.blocks)}"
                )
            self.blocks = list(state.blocks)
            self.shape = shape
            self._build_networks()

        if not set(state.blocks) <= set(self.blocks) or shape != self.shape:
            raise ValueError(
                f"`credit`: fitted for blocks {self.blocks} with {self.shape}, got "
                f"{list(state.blocks)} with {shape}"
            )
        if self.blocks[-1] not in state.blocks:
            raise ValueError(f"`blocks`: expected the terminal one, {self.blocks[-1]!r}, too")

        # In half precision, a network would not move by the small steps of its training.
        hidden = state.hidden[state.blocks[0]]
        precision = torch.promote_types(hidden.dtype, torch.float32)
        for part in self.parts:
            getattr(self, part).to(hidden.device, precision)  # moves only if it has to
        return signal.to(hidden.device, precision)

    def _stack_blocks(
        self, state: State, blocks: Sequence[str], signal: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return what the network takes, block after block: rows, time, signal, and what counts."""
        rows = [as_rows(state.hidden[block].detach().to(signal), "`blocks`") for block in blocks]

        # Time goes from 0 at the first block that the bridge is fitted for to 1 at the last.
        times = [self.blocks.index(block) / (len(self.blocks) - 1) for block in blocks]
        # Filled there: a list of numbers would have to be sent to the device.
        time = torch.cat([signal.new_full((len(signal),), number) for number in times])

        # All blocks have one shape, and so the same padding; vectors have no positions, and a state
        # of the user's own making, such as a training step's, need not know of any.
        has_positions = state.hidden[blocks[0]].dim() == 3
        counts = state.positions(blocks[0]) if has_positions else None
        if counts is not None:
            counts = counts.repeat(len(blocks), 1)
        return torch.cat(rows), time, signal.repeat(len(blocks), 1), counts

    def state_dict(self) -> dict[str, Any]:
        """Settings and weights, for `torch.save`; the optimizer is left out."""
        tensors = {}
        if self.blocks:
            for part in self.parts:
                for name, tensor in getattr(self, part).state_dict().items():
                    tensors[f"{part}.{name}"] = tensor
        return {
            "credit": type(self).__name__,
            "settings": self.settings,
            "fitted": {"blocks": self.blocks, "shape": self.shape},
            "tensors": tensors,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        check_kind(self, saved)
        self.settings = dict(saved["settings"])
        self.optimizer = None
        self.blocks = list(saved["fitted"]["blocks"])
        self.shape = dict(saved["fitted"]["shape"])
        if not self.blocks:
            return

        self._build_networks()
        for part in self.parts:
            weights = {
                name.removeprefix(f"{part}."): tensor
                for name, tensor in saved["tensors"].items()
                if name.startswith(f"{part}.")
            }
            # Cast first: loading would round the weights to whatever the new network has.
            dtype = next(iter(weights.values())).dtype
            getattr(self, part).to(dtype).load_state_dict(weights)

    def to_dataset(self) -> xr.Dataset:
        """Everything needed to repeat the measurement; `nudging.load_credit` reads it."""
        saved = self.state_dict()
        settings = {"settings": saved["settings"], "fitted": saved["fitted"]}
        return to_dataset(type(self).__name__, settings, saved["tensors"])

    @classmethod
    def from_dataset(cls, saved: xr.Dataset) -> Self:
        """The bridge that `to_dataset` wrote."""
        contents = read_saved(saved)
        check_settings(cls, contents.settings["settings"])
        bridge = cls(**contents.settings["settings"])

        # Before any network is made: settings may ask for more memory than there is.
        fitted = contents.settings["fitted"]
        bridge._check_shapes(fitted, contents.tensors)
        state = {"credit": cls.__name__, **contents.settings, "tensors": contents.tensors}
        bridge.load_state_dict(state)
        return bridge

    def _check_shapes(self, fitted: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are not those of the networks that the settings ask for."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected_shapes: dict[str, tuple[int, ...]] = {}

        if len({tensor.dtype for tensor in tensors.values()}) > 1:
            raise ValueError("expected tensors of one dtype")
        if not all(isinstance(block, str) for block in fitted["blocks"]):
            raise ValueError(f"expected names of blocks, got {fitted['blocks']}")

        if fitted["blocks"]:
            for name in ("width", "classes"):
                check_whole(name, fitted["shape"][name])
            if self.settings["layers"] > len(tensors):
                raise ValueError(f"expected tensors of {self.settings['layers']} layers")

            trial = type(self)(**self.settings)
            trial.shape = dict(fitted["shape"])
            with torch.device("meta"):
                trial._build_networks()
            for part in self.parts:
                for name, tensor in getattr(trial, part).state_dict().items():
                    expected_shapes[f"{part}.{name}"] = tuple(tensor.shape)

        if shapes != expected_shapes:
            raise ValueError(f"expected tensors {expected_shapes}, got {shapes}")


def _shape_of(state: State, signal: Tensor) -> dict[str, Any]:
    """Return what the networks must know of the model; refuse what a bridge cannot take."""
    if signal.dim() != 2:
        raise ValueError(
            f"`model`: a bridge expects outputs (sample, class), got {tuple(signal.shape)}"
        )

    hidden_shapes = {block: tuple(hidden.shape[1:]) for block, hidden in state.hidden.items()}
    if len(set(hidden_shapes.values())) > 1:
        raise ValueError(f"`blocks`: a bridge expects outputs of one shape, got {hidden_shapes}")

    _, n_positions, width = as_rows(state.hidden[state.blocks[0]], "`blocks`").shape
    return {"width": width, "classes": signal.shape[1], "pooled": n_positions > 1}
