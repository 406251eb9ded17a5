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

from nudging._credits.network import Trunk
from nudging._credits.output_error import output_error
from nudging._credits.positions import as_rows
from nudging._credits.saving import check_kind, read_settings, read_tensors, to_dataset
from nudging._measures.batches import check_positive, check_whole
from nudging._measures.numbers import dataset
from nudging._replay.losses import Loss
from nudging._replay.observe import find_blocks, observe
from nudging._replay.state import State, count_samples
from resonance_toolkit import device_of, provenance, take


class Bridge(ABC):
    """What the two learned credits share: one network for all depths, its training, its files."""

    parts: ClassVar[Sequence[str]] = ("net",)  # names of the networks to be saved

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in ("hidden", "layers", "times"):
            check_whole(name, settings[name], 1)
        if settings["times"] % 2:
            raise ValueError(f"`times`: expected an even number, got {settings['times']}")
        check_positive("lr", settings["lr"])
        self.settings = settings
        self.blocks: list[str] = []
        self.shape: dict[str, Any] = {}  # width, classes, pooled: known after the first batch
        self.net: Trunk
        self.optimizer: torch.optim.Optimizer | None = None

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
            data: What `resonance.take` accepts.
            blocks: Names or patterns; all of one shape. The last is the terminal state.
            loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
            epochs: Passes over the samples, in another order each time.
            batch_size: Samples in one step.
            samples: How many of the data to use; all by default.
            seed: Decides which samples, and their order.

        Returns:
            Dataset with `loss (epoch)`, the bridge's own, averaged over the steps.
        """
        find_blocks(model, blocks)
        check_whole("epochs", epochs, 1)
        check_whole("batch_size", batch_size, 1)
        (data,) = take(data, samples, seed, model=model, batch_size=2**62)
        count, generator = count_samples(data[0]), torch.Generator().manual_seed(seed)
        curve, full = [], None
        for _ in tqdm(range(epochs), desc=type(self).__name__, disable=None, leave=False):
            losses = []
            order = torch.randperm(count, generator=generator).to(device_of(model))
            for rows in order.split(batch_size):
                pick = [tree_map_only(Tensor, itemgetter(rows), part) for part in data]
                state = observe(model, pick[0], pick[1], blocks, loss=loss, full=full)
                full = state.full
                losses.append(self.update(state))
            curve.append(float(np.mean(losses)))
        return dataset(
            {"loss": ("epoch", curve, "loss of the bridge")},
            {"epoch": (np.arange(1, epochs + 1), "passes over the samples")},
            provenance(
                f"nudging.{type(self).__name__}.fit", model, blocks=self.blocks, order_seed=seed,
                batch_size=batch_size, samples=count, **self.settings,
            ),
        )  # fmt: skip

    def update(self, state: State) -> float:
        """Train the bridge by one step on a batch; gives its loss. For training online."""
        signal = self._signal(state, build=True)
        parameters = list(self.net.parameters())
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameters, self.settings["lr"], weight_decay=0.01)
        with torch.enable_grad():
            loss = self._loss(state, signal)
            # Not backward(): nothing may land in the gradients of the model.
            grads = torch.autograd.grad(loss, parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        self.optimizer.step()
        return loss.item()

    @abstractmethod
    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block."""

    @abstractmethod
    def _loss(self, state: State, signal: Tensor) -> Tensor:
        """What one step of training lowers."""

    @abstractmethod
    def _build(self) -> None:
        """Make the networks for `self.shape`."""

    def _trunk(self, outputs: int) -> Trunk:
        own = {name: self.settings[name] for name in ("hidden", "layers", "times", "seed")}
        shape = self.shape
        return Trunk(shape["width"], shape["classes"], outputs, pooled=shape["pooled"], **own)

    def _signal(self, state: State, *, build: bool = False) -> Tensor:
        """The output error of every sample, once the state is known to fit the bridge."""
        signal = output_error(state)
        if signal.dim() != 2:
            got = tuple(signal.shape)
            raise ValueError(f"`model`: a bridge expects outputs (sample, class), got {got}")
        shapes = {block: tuple(h.shape[1:]) for block, h in state.hidden.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"`blocks`: a bridge expects outputs of one shape, got {shapes}")
        rows = as_rows(next(iter(state.hidden.values())), "`blocks`")
        found = {"width": rows.shape[2], "classes": signal.shape[1], "pooled": rows.shape[1] > 1}
        if not self.blocks:
            if not build:
                raise ValueError(f"`credit`: this {type(self).__name__} is not fitted; call `fit`")
            if len(shapes) < 2:
                raise ValueError(f"`blocks`: a bridge expects two or more, got {list(shapes)}")
            self.blocks, self.shape = list(shapes), found
            self._build()
        if not shapes.keys() <= set(self.blocks) or found != self.shape:
            raise ValueError(
                f"`credit`: fitted for blocks {self.blocks} with {self.shape}, got "
                f"{list(shapes)} with {found}"
            )
        if self.blocks[-1] not in shapes:
            raise ValueError(f"`blocks`: expected the terminal one, {self.blocks[-1]!r}, too")
        # In half precision, a network would not move by the small steps of its training.
        precision = torch.promote_types(rows.dtype, torch.float32)
        for part in self.parts:
            getattr(self, part).to(rows.device, precision)  # moves only if it has to
        return signal.to(rows.device, precision)

    def _stack(
        self, state: State, blocks: Sequence[str], signal: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the network takes, block after block: rows, time and signal of every sample."""
        rows = [as_rows(state.hidden[block].detach().to(signal), "`blocks`") for block in blocks]
        times = [self.blocks.index(block) / (len(self.blocks) - 1) for block in blocks]
        time = signal.new_tensor(times).repeat_interleave(len(signal))
        return torch.cat(rows), time, signal.repeat(len(blocks), 1)

    def state_dict(self) -> dict[str, Any]:
        """Settings and weights, for `torch.save`; the optimizer is left out."""
        nets = {part: getattr(self, part) for part in self.parts if self.blocks}
        tensors = {f"{part}.{k}": v for part, n in nets.items() for k, v in n.state_dict().items()}
        about = {"settings": self.settings, "fitted": {"blocks": self.blocks, "shape": self.shape}}
        return {"credit": type(self).__name__, **about, "tensors": tensors}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        check_kind(self, saved)
        self.settings, self.optimizer = dict(saved["settings"]), None
        self.blocks, self.shape = list(saved["fitted"]["blocks"]), dict(saved["fitted"]["shape"])
        if not self.blocks:
            return
        self._build()
        for part in self.parts:
            own = {k.removeprefix(f"{part}."): v for k, v in saved["tensors"].items()
                   if k.startswith(f"{part}.")}  # fmt: skip
            network = getattr(self, part)
            network.to(next(iter(own.values())).dtype).load_state_dict(own)

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
