"""What the two learned credits share: one network for all depths, its training, its files.

A bridge is built by the first batch that it is trained on, which tells the blocks, their width and
the number of classes:

    StateBridge(...)  --fit or update-->  networks built, then trained  --call-->  credits
         |                                       ^
         +------------ load_state_dict ----------+
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from nudging._credits.credit import list_settings
from nudging._credits.network import BridgeNetwork, NetworkSettings
from nudging._credits.output_error import output_error
from nudging._credits.positions import as_rows
from nudging._credits.saving import check_kind, read_settings, read_tensors, to_dataset
from nudging._replay.losses import name_of_loss
from nudging._replay.observe import observe
from nudging._replay.setup import make_setup
from nudging._replay.state import State
from resonance_toolkit import (
    Loss,
    check_positive,
    check_whole,
    count_samples,
    device_of,
    dtype_name,
    provenance,
    take,
)


class Bridge(ABC):
    """A credit that is learned from the hidden states of a model.

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

        self.settings = settings
        self.blocks: list[str] = []
        self.shape: dict[str, Any] = {}
        self.net: BridgeNetwork
        self.optimizer: torch.optim.Optimizer | None = None

    def __repr__(self) -> str:
        fitted = f"fitted for {', '.join(self.blocks)}" if self.blocks else "not fitted"
        return f"<{type(self).__name__}({list_settings(self.settings)}), {fitted}>"

    @abstractmethod
    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block."""

    @abstractmethod
    def _loss(self, state: State, signal: Tensor) -> Tensor:
        """Return what one step of training lowers."""

    @abstractmethod
    def _build_networks(self) -> None:
        """Make the networks for `self.shape`."""

    @torch.inference_mode(False)
    def fit(
        self,
        model: nn.Module,
        data: Any,
        blocks: str | Sequence[str],
        *,
        loss: Loss | None = None,
        epochs: int = 10,
        batch_size: int = 128,
        samples: int | None = None,
        seed: int = 0,
    ) -> xr.Dataset:
        """Train the bridge on the hidden states of a model that stays as it is.

        Args:
            model: Left as it was found.
            data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
            blocks: Names or patterns; all of one shape. The last is the terminal state.
            loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
            epochs: Passes over the samples, in another order each time.
            batch_size: Samples in one step.
            samples: How many of the data to use; all by default.
            seed: Decides which samples, and their order.

        Returns:
            Dataset with `loss (epoch)`, the bridge's own, averaged over the steps.

        Raises:
            ValueError: If an argument does not fit, or blocks and bridge do not.
            TypeError: If an argument is of the wrong kind.
        """
        setup = make_setup(model, blocks, loss)
        epochs = check_whole("epochs", epochs)
        batch_size = check_whole("batch_size", batch_size)

        ((inputs, targets),) = take(data, samples, seed, model=model, batch_size=None)
        n_samples = count_samples(inputs)
        generator = torch.Generator().manual_seed(seed)

        epoch_losses = []
        full_pass_reason = None  # found out at the first batch
        for _ in tqdm(range(epochs), desc=type(self).__name__, disable=None, leave=False):
            step_losses = []
            order = torch.randperm(n_samples, generator=generator).to(device_of(model))

            for rows in order.split(batch_size):
                x, y = tree_map_only(Tensor, itemgetter(rows), (inputs, targets))
                state = observe(model, x, y, blocks, loss=loss, full_pass_reason=full_pass_reason)
                full_pass_reason = state.full_pass_reason
                step_losses.append(self.update(state))
            epoch_losses.append(float(np.mean(step_losses)))

        passes = {"long_name": "passes over the samples"}
        return xr.Dataset(
            {"loss": ("epoch", epoch_losses, {"long_name": "loss of the bridge"})},
            coords={"epoch": ("epoch", np.arange(1, epochs + 1), passes)},
            attrs=provenance(
                f"nudging.{type(self).__name__}.fit",
                model,
                blocks=self.blocks,
                loss=name_of_loss(setup.loss),
                dtype=dtype_name(state.hidden[self.blocks[0]].dtype),
                order_seed=seed,
                batch_size=batch_size,
                n_samples=n_samples,
                **self.settings,
            ),
        )

    def update(self, state: State) -> float:
        """Train the bridge by one step on a batch; gives its loss. For training online."""
        signal = self._prepare(state, may_build=True)
        parameters = list(self.net.parameters())
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameters, self.settings["lr"], weight_decay=0.01)

        with torch.enable_grad():
            loss = self._loss(state, signal)
            # Not backward(): nothing may land in the gradients of the model.
            gradients = torch.autograd.grad(loss, parameters)

        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return loss.item()

    def _make_network(self, outputs: int) -> BridgeNetwork:
        sizes = {name: self.settings[name] for name in ("hidden", "layers", "times", "seed")}
        return BridgeNetwork(NetworkSettings(**self.shape, **sizes), outputs=outputs)

    def _prepare(self, state: State, *, may_build: bool = False) -> Tensor:
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the network takes, block after block: rows, time and signal of samples."""
        rows = [as_rows(state.hidden[block].detach().to(signal), "`blocks`") for block in blocks]

        # Time goes from 0 at the first block that the bridge is fitted for to 1 at the last.
        times = [self.blocks.index(block) / (len(self.blocks) - 1) for block in blocks]
        time = signal.new_tensor(times).repeat_interleave(len(signal))
        return torch.cat(rows), time, signal.repeat(len(blocks), 1)

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
        settings = read_settings(saved)
        bridge = cls(**settings["settings"])
        bridge.load_state_dict({**saved.attrs, **settings, "tensors": read_tensors(saved)})
        return bridge


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
