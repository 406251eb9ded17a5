"""What the two learned credits share: how a bridge is trained, on data or step by step."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._credits.bridge_networks import BridgeNetworks
from nudging._replay.losses import choose_loss, name_of_loss, settle_meaning
from nudging._replay.nests import pick_samples
from nudging._replay.observe_batch import observe_batch
from nudging._replay.setup import choose_blocks, make_setup
from nudging._replay.state import State
from resonance_toolkit import (
    IGNORED_TARGET,
    Batches,
    Loss,
    check_whole,
    count_samples,
    describe_targets,
    dtype_name,
    ignore_index_of,
    leave_out_uncounted,
    provenance,
    take,
    track,
)


class Bridge(BridgeNetworks):
    """A credit that is learned from the hidden states of a model."""

    @abstractmethod
    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block."""

    @abstractmethod
    def _loss(self, state: State, signal: Tensor) -> Tensor:
        """Return what one step of training lowers."""

    @torch.inference_mode(False)
    def fit(
        self,
        model: nn.Module,
        data: Any,
        blocks: str | Sequence[str] | None = None,
        *,
        loss: Loss | None = None,
        epochs: int = 10,
        batch_size: int = 128,
        samples: int | None = None,
        seed: int = 0,
    ) -> xr.Dataset:
        """Train the bridge on the hidden states of a model that stays as it is.

        Args:
            model: Any module, called in eval mode (see `call_model`); left as it was found.
            data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list
                of batches; see `resonance_toolkit.take`.
            blocks: Names or patterns; all of one shape. The last is the terminal state. By default
                those of `resonance_toolkit.find_blocks`.
            loss: `(outputs, targets)` to one loss per sample; by default the one that the targets
                ask for, without samples whose targets are all -100.
            epochs: Passes over the samples, in another order each time.
            batch_size: Samples in one step.
            samples: How many of the data to use; all by default.
            seed: Determines which samples, and their order.

        Returns:
            Dataset with `loss (epoch)`, the bridge's own, averaged over the steps.

        Raises:
            ValueError: If an argument does not fit, or blocks and bridge do not.
            TypeError: If an argument is of the wrong kind.
        """
        modules = choose_blocks(model, blocks)
        epochs = check_whole("epochs", epochs)
        batch_size = check_whole("batch_size", batch_size)

        # One piece for each shape of samples, from which every epoch picks rows in another order.
        has_loss = loss is not None
        pieces = take(data, samples, seed, model=model, batch_size=None, has_loss=has_loss)
        ignored = IGNORED_TARGET if loss is None else ignore_index_of(loss)
        if ignored is not None:
            pieces = leave_out_uncounted(pieces, ignored)
        setup = make_setup(model, modules, choose_loss(loss, [targets for _, targets in pieces]))
        n_samples = sum(count_samples(inputs) for inputs, _ in pieces)
        generator = torch.Generator().manual_seed(seed)

        epoch_losses = []
        full_pass_reason = None  # found out at the first batch
        for _ in track(range(epochs), type(self).__name__, unit="epoch"):
            step_losses = []
            for x, y in _shuffle(pieces, batch_size, generator):
                state = observe_batch(setup, x, y, full_pass_reason=full_pass_reason)
                full_pass_reason = state.full_pass_reason
                setup = setup.keep_blocks(state.blocks)
                step_losses.append(self.update(state))
            epoch_losses.append(float(np.mean(step_losses)))

        meaning = settle_meaning(setup.loss, state.outputs, state.targets)
        passes = {"long_name": "passes over the samples"}
        return xr.Dataset(
            {"loss": ("epoch", epoch_losses, {"long_name": "loss of the bridge"})},
            coords={"epoch": ("epoch", np.arange(1, epochs + 1), passes)},
            attrs=provenance(
                f"nudging.{type(self).__name__}.fit",
                model,
                blocks=self.blocks,
                blocks_reason=setup.modules.reason,
                loss=name_of_loss(setup.loss),
                targets=describe_targets(meaning, state.inputs, state.targets),
                dtype=dtype_name(state.hidden[self.blocks[0]].dtype),
                order_seed=seed,
                batch_size=batch_size,
                n_samples=n_samples,
                **self.settings,
            ),
        )

    def update(self, state: State) -> float:
        """Train the bridge by one step on a batch; gives its loss. For training online."""
        signal = self._read_signal(state, may_build=True)
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


def _shuffle(
    pieces: Batches, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Any, Any]]:
    """Yield all samples once, in another order, in batches of one shape."""
    batches = [
        (piece, rows)
        for piece in pieces
        for rows in _permute(count_samples(piece), generator).split(batch_size)
    ]

    # Of one piece, the rows are in random order already.
    order = list(range(len(batches)))
    if len(pieces) > 1:
        order = _permute(len(batches), generator).tolist()

    for index in order:
        piece, rows = batches[index]
        yield pick_samples(piece, rows)


def _permute(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device="cpu")
