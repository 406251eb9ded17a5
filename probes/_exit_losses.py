from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
import xarray as xr
from torch import Tensor, nn

from probes._attached import Attached
from probes._exit_capture import ExitCapture, hook_exits
from probes._exit_groups import parameter_groups
from probes._exit_head import Head
from probes._exit_targets import check_exit_targets, mean_cross_entropy
from probes._exit_weights import Weights, resolve_weights, weights_at
from probes._ready import ready_features
from probes._synchronise import synchronise_gradients
from resonance import find_layers, provenance, unwrap

_LOSS = {"long_name": "mean cross-entropy", "units": "nat"}


@dataclass(frozen=True)
class ExitPoint:
    """An exit: what its layer yields per sample, and how that becomes logits (or features)."""

    shape: tuple[int, ...]
    head: Head


class Exits(Attached):
    """The losses of a model's layers; made by `probes.attach_exits`.

    Its parameters are the exits' own heads, if they have some. It is not part of the model: it
    keeps the model neither alive nor in its `state_dict`. A copied or unpickled one is detached;
    `reattach(model)` hooks it into a model with the same layers.

    Attributes:
        layers: Names of the exits, in forward order; the last is the model's own output.
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
        super().__init__()
        self.layers = [*points, last]
        self.points, self.segments = points, segments
        self.weighting = resolve_weights(weights, self.layers)
        self.heads = nn.ModuleList(heads.values())
        self.step = 0
        self._latest: dict[str, tuple[float, Tensor]] = {}
        self._forget()
        synchronise_gradients(list(self.parameters()))
        self.reattach(root)

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
        unweighted = (0.0 if self._latest else float("nan"), float("nan"))
        weights, losses = zip(
            *[self._latest.get(name, unweighted) for name in self.layers], strict=True
        )
        return xr.Dataset(
            {
                "loss": ("layer", [float(x) for x in losses], _LOSS),
                "weight": ("layer", list(weights), {"long_name": "weight in the objective"}),
            },
            coords={
                "layer": ("layer", self.layers, {"long_name": "exit"}),
                "step": ((), self.step, {"long_name": "losses made before"}),
            },
            attrs=provenance("probes.Exits.measure", self._root()),
        )

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

    def reattach(self, model: nn.Module) -> Self:
        """Hook into `model`, which must have the same layers, and leave any model before it."""
        early = {name: find_layers(model, name)[name] for name in self.layers[:-1]}
        root = unwrap(model)
        self.detach()
        self._hold(root, hook_exits(root, early, self._capture))
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Beside the heads' weights, a state has the step."""
        return {"step": self.step, "layers": self.layers}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved step."""
        if state["layers"] != self.layers:
            raise ValueError(f"`layers`: expected the saved {state['layers']}, got {self.layers}")
        self.step = state["step"]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        synchronise_gradients(list(self.parameters()))

    def __repr__(self) -> str:
        rows = [("layer", "output", "weight", "way to the logits")]
        weights = self.weights
        for name, point in self.points.items():
            way = f"{point.head} > own head" if self.heads else str(point.head)
            shape = " x ".join(str(size) for size in point.shape)
            rows.append((name, shape, f"{weights[name]:g}", way))
        last = self.layers[-1]
        rows.append((last, "", f"{weights[last]:g}", "the model's output"))
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        where = "attached" if self.attached else "detached"
        return "\n".join([f"Exits(step={self.step}, {where})", *lines])

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
        with _as_in_the_pass(root, output):
            logits = self.logits(name, hidden)
        if logits.shape != output.shape:
            raise RuntimeError(
                f"layer {name!r} gave logits {tuple(logits.shape)}, the model {tuple(output.shape)}"
            )
        return mean_cross_entropy(logits, targets)

    def _new_capture(self) -> ExitCapture:
        return ExitCapture()


def _as_in_the_pass(root: nn.Module, output: Tensor) -> AbstractContextManager[Any]:
    """Autocast as the model's own head ran: half logits from other weights tell."""
    kind, half = output.device.type, output.dtype in (torch.float16, torch.bfloat16)
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    mixed = half and all(p.dtype != output.dtype for p in root.parameters())
    return torch.autocast(kind, dtype=output.dtype if mixed else None, enabled=mixed)
