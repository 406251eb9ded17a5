from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from probes._exit_training.capture import (
    ExitCapture,
    OutputHook,
    keep_everything,
    keeping_running_statistics,
)
from probes._exit_training.divergence import mean_divergence
from probes._exit_training.head import ExitPoint
from probes._exit_training.reports import (
    LatestLoss,
    exit_learning_rates,
    losses_dataset,
    parameter_groups,
    summarise_exits,
)
from probes._exit_training.targets import as_class_indices, check_exit_targets, mean_cross_entropy
from probes._exit_training.translator import keeping_parameters_out
from probes._exit_training.weights import weights_at
from probes._model.distributed import synchronise_gradients
from probes._model.latest_features import ready_features
from probes._model.listener import Listener
from probes._model.next_token import move_ahead
from probes._model.pooling import Pool
from probes._model.sequences import has_two_sequences
from probes.weightings import Weighting


class Exits(Listener):
    """The losses of a model's layers; made by `probes.attach_exits`.

    Its parameters are the exits' own heads, if they have any. It is not part of the model: it does
    not keep the model alive, and the model is not in its `state_dict`. A copy, or an unpickled
    object, is detached; `reattach(model)` attaches it to a model with the same layers.

    Attributes:
        step: How many losses it has given; the argument of schedules. You may set it.
    """

    _capture: ExitCapture
    reason: str | None = None  # why these layers, if nobody named them

    def __init__(
        self,
        root: nn.Module,
        points: dict[str, ExitPoint],
        last: str,
        weighting: Weighting,
        segments: dict[str, int],
        heads: dict[str, nn.Module],
        *,
        is_tuned: bool = False,
    ) -> None:
        whole_output = Pool("custom", custom=keep_everything)
        super().__init__(dict.fromkeys(points, whole_output), adaptive=False)

        self.points = points
        self.last = last
        self.weighting = weighting
        self.segments = segments  # for every parameter of the model, the number of its exit
        self.heads = nn.ModuleList(heads.values())
        self.is_tuned = is_tuned  # heads are translators, before the model's own
        self.step = 0
        self._latest: LatestLoss | None = None

        self.reattach(root)

    @property
    def layers(self) -> list[str]:
        """Names of the exits, in forward order; the last is the model's own output."""
        return [*self.pools, self.last]

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every layer in the next loss."""
        values = weights_at(self.weighting, self.layers, self.step)
        return dict(zip(self.layers, values, strict=True))

    def loss(self, targets: Tensor, *, shift: bool | None = None) -> Tensor:
        """Return the weighted sum of the cross-entropies of all layers on the latest forward pass.

        The model's own loss is part of the sum, with the last weight, so this is the whole training
        objective. Layers of weight 0 cost nothing. Each forward pass gives one loss; a second call
        raises an error, and never returns the loss of an older pass.

        Args:
            targets: The right class for every position of the model's logits, with -100 where
                there is none: `(sample,)`, or soft `(sample, class)`, for a classifier; `(sample,
                token)` for a language model. For a causal language model of transformers, pass
                its `labels`; as in its own loss, the target of a position is the label after it.
            shift: Whether the target of a token is the label after it. None: yes for causal
                language models of transformers, otherwise no. False: the targets are already
                shifted; a model that reads `ids[:, :-1]` then has the targets `ids[:, 1:]`.

        Returns:
            A scalar with the graph of the latest forward pass.

        Raises:
            RuntimeError: If the latest pass left nothing to compute a loss from.
            ValueError: If `targets` do not fit.
        """
        weights = self.weights
        outputs = self._early_outputs(weights)
        logits = self._capture.logits()
        ids = self._capture.input_ids
        targets = as_class_indices(targets, logits)
        targets = move_ahead(targets, self._root(), ids, shift, "targets")
        check_exit_targets(targets, logits)

        synchronise_gradients(self.parameters())
        losses = {
            name: mean_cross_entropy(self._early_logits(name, hidden, logits), targets)
            for name, hidden in outputs.items()
        }
        losses[self.last] = mean_cross_entropy(logits, targets)
        terms = [weights[name] * loss.to(logits.device) for name, loss in losses.items()]

        self._latest = LatestLoss(
            weights={name: weights[name] for name in losses},
            losses={name: loss.detach() for name, loss in losses.items()},
            n_samples=len(targets),
        )
        # A loss under `no_grad` is a measurement: schedules do not advance.
        if self._capture.grad:
            self.step += 1
        self._capture.use()

        return torch.stack(terms).sum()

    def divergence(self) -> Tensor:
        """Return how far the exits are from the model's own output on the latest pass.

        This is the weighted sum over early exits of the mean over positions of KL(model || exit),
        in nat. It needs no targets, and sends no gradient into the model's own output. With
        `head="tuned"`, it is the loss to train the lens on. Positions that a mask in the model's
        call marks as padding are left out. Call it instead of `loss` for this pass.

        Returns:
            A scalar.

        Raises:
            RuntimeError: If the latest pass left nothing to compute it from.

        Examples:
            The model's probabilities are 1/2 and 1/2, the exit's 1/4 and 3/4. The divergence is
            ln(2) / 2 + ln(2 / 3) / 2 = 0.1438, and the weight of the exit is 1/2.

            >>> import math, probes
            >>> undecided = nn.Linear(2, 2, bias=False)
            >>> _ = undecided.weight.data.zero_()
            >>> model = nn.Sequential(nn.Identity(), undecided)
            >>> exits = probes.attach_exits(
            ...     model, ["0", "1"], head=lambda h: h, sample=torch.zeros(1, 2)
            ... )
            >>> _ = model(torch.tensor([[0.0, math.log(3)]]))
            >>> round(exits.divergence().item(), 4)
            0.0719
        """
        weights = self.weights
        outputs = self._early_outputs(weights)
        logits = self._capture.logits()
        counts = self._places_that_count(logits)

        synchronise_gradients(self.parameters())
        divergences = {
            name: mean_divergence(self._early_logits(name, hidden, logits), logits, counts)
            for name, hidden in outputs.items()
        }
        terms = [weights[name] * value.to(logits.device) for name, value in divergences.items()]

        last_divergence = logits.new_zeros(())  # of the model's output from itself
        values = {**divergences, self.last: last_divergence}
        self._latest = LatestLoss(
            weights={name: weights[name] for name in values},
            losses={name: value.detach() for name, value in values.items()},
            n_samples=len(logits),
            name="divergence",
        )
        if torch.is_grad_enabled():
            self.step += 1
        self._capture.use()

        return torch.stack([last_divergence, *terms]).sum()

    def measure(self) -> xr.Dataset:
        """Return the parts of the latest loss.

        Returns:
            Dataset with `weight (layer)` and `loss (layer)`, the mean cross-entropy of each layer
            (after `divergence`, the mean divergence; the attribute `loss` says which). A loss that
            was not computed because its weight was 0 is NaN. `step` is the number of losses so far.
            Everything is NaN before the first loss.
        """
        return losses_dataset(self.layers, self._latest, self.step, self._root())

    def parameter_groups(
        self, lr: float, factors: Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """Return optimizer groups, with a learning rate for each exit's part of the model.

        A parameter belongs to the first exit after the module that holds it. The final norm and
        the head, which all exits share, belong to the first exit.

        Args:
            lr: The learning rate for a factor of 1.
            factors: One number per layer, such as `(1, 0.5, 0.1)`; all 1 if not given.

        Returns:
            One group per layer (`params`, `lr`, `name`), including the exit's own head. Together,
            the groups hold every parameter of the model and of these exits once.
        """
        root = self._root()
        if root is None:
            raise RuntimeError("the exits are detached: parameter groups need their model")

        learning_rates = exit_learning_rates(self.layers, lr, factors)

        # The heads, if there are any, belong to all layers but the last.
        own_parameters = {
            name: list(head.parameters())
            for name, head in zip(self.layers, self.heads, strict=False)
        }
        return parameter_groups(root, self.segments, own_parameters, learning_rates)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what a state has beside the heads' weights: the step, and whose it is."""
        return {"step": self.step, "layers": self.layers}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved step.

        Raises:
            ValueError: If the state was saved by exits at other layers.
        """
        if state["layers"] != self.layers:
            raise ValueError(f"`layers`: expected the saved {state['layers']}, got {self.layers}")
        self.step = state["step"]

    def __repr__(self) -> str:
        status = "attached" if self.attached else "detached"
        has_own_heads = len(self.heads) > 0
        table = summarise_exits(
            self.points, self.weights, has_own_heads=has_own_heads, is_tuned=self.is_tuned
        )
        heading = f"Exits(step={self.step}, {status})"
        if self.reason is not None:
            heading = f"{heading}\nlayers found: {self.reason}"
        return f"{heading}\n{table}"

    def logits(self, name: str, hidden: Tensor, *, root: nn.Module | None = None) -> Tensor:
        """Compute the logits of an early exit.

        Args:
            name: One of `layers`, but not the last.
            hidden: The output of that layer.
            root: The model, if it is not the one that the exits are attached to.

        Returns:
            `(sample, class)` or `(sample, token, class)`, as the model's own.

        Raises:
            RuntimeError: If the exits are detached, and no model is given.
        """
        model = self._root() if root is None else root
        if model is None:
            raise RuntimeError("the exits are detached: logits need their model")

        if self.is_tuned:
            translator = self.heads[self.layers.index(name)].to(hidden.device)
            return self.points[name].head(model, translator(hidden))

        logits_or_features = self.points[name].head(model, hidden)
        if not len(self.heads):
            return logits_or_features

        # An own head follows the features to their device (a model may be spread over several).
        own_head = self.heads[self.layers.index(name)].to(logits_or_features.device)
        dtype = next(own_head.parameters()).dtype
        logits: Tensor = own_head(logits_or_features.to(dtype))
        return logits

    def _early_outputs(self, weights: dict[str, float]) -> dict[str, Tensor]:
        """What the early layers of some weight gave in the latest pass, or a refusal."""
        early_layers = [name for name in self.layers[:-1] if weights[name]]

        calls = ready_features(self._capture, early_layers, "all")
        for name, outputs in calls.items():
            if len(outputs) > 1:
                raise RuntimeError(f"layer {name!r} ran {len(outputs)} times in one forward pass")
        return {name: outputs[0] for name, outputs in calls.items()}

    def _places_that_count(self, logits: Tensor) -> Tensor | None:
        """The padding mask of the latest call, if it is one of the logits' places."""
        root = self._root()
        assert root is not None

        capture = self._capture
        counts = capture.decoder_counts if has_two_sequences(root) else capture.call_counts
        return counts if counts is not None and counts.shape == logits.shape[:-1] else None

    def _early_logits(self, name: str, hidden: Tensor, model_logits: Tensor) -> Tensor:
        root = self._root()
        assert root is not None

        shared_modules = self.points[name].head.modules
        with (
            _autocast_as_in_the_pass(root, model_logits),
            keeping_running_statistics(root, shared_modules),
            keeping_parameters_out(root) if self.is_tuned else nullcontext(),
        ):
            logits = self.logits(name, hidden.detach() if self.is_tuned else hidden)

        if logits.shape != model_logits.shape:
            raise RuntimeError(
                f"layer {name!r} gave logits {tuple(logits.shape)}, the model "
                f"{tuple(model_logits.shape)}"
            )
        return logits

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


def _autocast_as_in_the_pass(root: nn.Module, model_logits: Tensor) -> AbstractContextManager[Any]:
    """Run the exit's head under autocast if the model's own head was, and only then.

    The loss is often taken outside of the autocast block that the pass was in. What tells is the
    dtype of the logits: half precision, though no parameter has that dtype.
    """
    device_type = model_logits.device.type
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()

    is_half = model_logits.dtype in (torch.float16, torch.bfloat16)
    is_mixed = is_half and all(p.dtype != model_logits.dtype for p in root.parameters())
    dtype = model_logits.dtype if is_mixed else None
    return torch.autocast(device_type, dtype=dtype, enabled=is_mixed)
