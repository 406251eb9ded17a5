from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from probes._exit_training.capture import ExitCapture, OutputHook, whole
from probes._exit_training.groups import parameter_groups
from probes._exit_training.reports import ExitPoint, parts_of, summarise_exits
from probes._exit_training.targets import check_exit_targets, mean_cross_entropy
from probes._exit_training.unrecorded import unrecorded
from probes._exit_training.weights import Weights, resolve_weights, weights_at
from probes._model.distributed import synchronise_gradients
from probes._model.latest_features import ready_features
from probes._model.listener import Listener
from probes._model.pooling import Pool


class Exits(Listener):
    """The losses of a model's layers; made by `probes.attach_exits`.

    Its parameters are the exits' own heads, if they have some. It is not part of the model: it
    keeps the model neither alive nor in its `state_dict`. A copied or unpickled one is detached;
    `reattach(model)` hooks it into a model with the same layers.

    Attributes:
        step: Losses made so far; the argument of schedules. May be set.
    """

    _capture: ExitCapture

    def __init__(
        self,
        root: nn.Module,
        points: dict[str, ExitPoint],
        last: str,
        weights: Weights,
        segments: dict[str, int],
        heads: dict[str, nn.Module],
    ) -> None:
        super().__init__(dict.fromkeys(points, Pool("custom", custom=whole)), adaptive=False)
        self.last, self.points, self.segments = last, points, segments
        self.weighting = resolve_weights(weights, self.layers)
        self.heads = nn.ModuleList(heads.values())
        self.step = 0
        self._latest: dict[str, tuple[float, Tensor]] = {}
        self.reattach(root)

    @property
    def layers(self) -> list[str]:
        """Names of the exits, in forward order; the last is the model's own output."""
        return [*self.pools, self.last]

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every layer in the next loss."""
        return dict(
            zip(self.layers, weights_at(self.weighting, self.layers, self.step), strict=True)
        )

    def loss(self, targets: Tensor) -> Tensor:
        """The weighted sum of all layers' mean cross-entropies on the latest forward pass.

        The model's own loss is part of the sum, with the last weight: this is the whole training
        objective. Layers of weight 0 cost nothing. Each forward pass gives one loss; a second one
        raises rather than be stale.

        Args:
            targets: The right class for every place of the model's logits, -100 where there is
                none: `(sample,)`, or soft `(sample, class)`, for a classifier; `(sample, token)`
                for a language model, so already shifted: with `ids (sample, token)` the model is
                given `ids[:, :-1]`, and the targets are `ids[:, 1:]`.

        Returns:
            A scalar with the graph of the latest forward pass.

        Raises:
            RuntimeError: If the latest pass left nothing to compute a loss from.
            ValueError: If `targets` do not fit.
        """
        weights = self.weights
        early = [name for name in self.layers[:-1] if weights[name]]
        seen = ready_features(self._capture, early, "all")
        for name, calls in seen.items():
            if len(calls) > 1:
                raise RuntimeError(f"layer {name!r} ran {len(calls)} times in one forward pass")
        output = self._capture.logits()
        check_exit_targets(targets, output)
        synchronise_gradients(self.parameters())
        parts = {name: self._early(name, seen[name][0], targets, output) for name in early}
        parts[self.layers[-1]] = mean_cross_entropy(output, targets)
        total = torch.stack([weights[k] * part.to(output.device) for k, part in parts.items()])
        self._latest = {name: (weights[name], part.detach()) for name, part in parts.items()}
        self.step += self._capture.grad
        self._capture.use()
        return total.sum()

    def measure(self) -> xr.Dataset:
        """The parts of the latest loss.

        Returns:
            Dataset with `loss (layer)`, the mean cross-entropy of each layer, NaN where it was not
            computed because its weight was 0, and `weight (layer)`.
        """
        return parts_of(self.layers, self._latest, self.step, self._root())

    def parameter_groups(
        self, lr: float, factors: Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """Optimizer groups with a learning rate for each exit's part of the model.

        A parameter belongs to the first exit that lies behind the module that holds it. What all
        exits share, the final norm and the head, belongs to the first.

        Args:
            lr: The learning rate of a factor of 1.
            factors: One number per layer, such as `(1, 0.5, 0.1)`; all 1 if not given.

        Returns:
            One group per layer (`params`, `lr`, `name`), the exit's own head included; together
            every parameter of the model and of these exits, once.
        """
        root = self._root()
        if root is None:
            raise RuntimeError("the exits are detached: parameter groups need their model")
        own = {
            name: list(head.parameters())
            for name, head in zip(self.layers, self.heads, strict=False)
        }
        return parameter_groups(root, self.layers, self.segments, own, lr, factors)

    def get_extra_state(self) -> dict[str, Any]:
        """Beside the heads' weights, a state has the step."""
        return {"step": self.step, "layers": self.layers}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved step."""
        if state["layers"] != self.layers:
            raise ValueError(f"`layers`: expected the saved {state['layers']}, got {self.layers}")
        self.step = state["step"]

    def __repr__(self) -> str:
        where = "attached" if self.attached else "detached"
        table = summarise_exits(self.points, self.weights, own=len(self.heads) > 0)
        return f"Exits(step={self.step}, {where})\n{table}"

    def logits(self, name: str, hidden: Tensor, *, root: nn.Module | None = None) -> Tensor:
        """The logits of an early exit.

        Args:
            name: One of `layers`, not the last.
            hidden: What the layer of that name yields.
            root: The model, if it is not the one attached to.
        """
        model = self._root() if root is None else root
        if model is None:
            raise RuntimeError("the exits are detached: logits need their model")
        made = self.points[name].head(model, hidden)
        if not len(self.heads):
            return made
        head = self.heads[self.layers.index(name)].to(made.device)
        result: Tensor = head(made.to(next(head.parameters()).dtype))
        return result

    def _early(self, name: str, hidden: Tensor, targets: Tensor, output: Tensor) -> Tensor:
        root = self._root()
        assert root is not None
        way = self.points[name].head.modules
        with _as_in_the_pass(root, output), unrecorded(root, way):
            logits = self.logits(name, hidden)
        if logits.shape != output.shape:
            raise RuntimeError(
                f"layer {name!r} gave logits {tuple(logits.shape)}, the model {tuple(output.shape)}"
            )
        return mean_cross_entropy(logits, targets)

    def _hooks(
        self, points: dict[str, tuple[nn.Module, Pool]], root: nn.Module
    ) -> list[RemovableHandle]:
        # First, so that it runs before the hook that closes the pass.
        return [
            root.register_forward_hook(OutputHook(self._capture, root)),
            *super()._hooks(points, root),
        ]

    def _new_capture(self) -> ExitCapture:
        return ExitCapture()


def _as_in_the_pass(root: nn.Module, output: Tensor) -> AbstractContextManager[Any]:
    """Autocast as the model's own head ran: half logits from other weights tell."""
    kind, half = output.device.type, output.dtype in (torch.float16, torch.bfloat16)
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    mixed = half and all(p.dtype != output.dtype for p in root.parameters())
    return torch.autocast(kind, dtype=output.dtype if mixed else None, enabled=mixed)
