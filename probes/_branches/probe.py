from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from probes._branches.branches import Branches, Settings
from probes._branches.compression_error import compression_error
from probes._branches.measure import measure
from probes._branches.strength import Strength, adaptive_strengths, scheduled_strength
from probes._branches.table import table_of_points
from probes._branches.targets import check_targets, flatten_positions
from probes._model.attachment_points import Point
from probes._model.call_model import call_model
from probes._model.distributed import synchronise_gradients
from probes._model.latest_features import Calls, ready_features
from probes._model.listener import Listener
from probes._model.never_compiled import never_compiled
from probes.schedules import Adaptive
from resonance_toolkit import evaluating, logits_of, name_of, preserving_rng


class Probe(Listener):
    """The branches attached to a model; made by `probes.attach`.

    Its parameters are the active branches only. It is not part of the model: it keeps the model
    neither alive nor in its `state_dict`, and when the probe is `detach()`ed, its `with` block
    ends, or it is collected, the model's hooks are gone. A copied or unpickled probe is detached;
    `reattach(model)` hooks it into a model with the same layers.

    Attributes:
        step: Losses made so far; the argument of an `alpha` schedule. May be set.
    """

    def __init__(
        self,
        root: nn.Module,
        points: dict[str, Point],
        settings: Settings,
        *,
        strength: Strength,
        connected: bool,
        calls: Calls | None,
    ) -> None:
        pools = {name: point.pool for name, point in points.items()}
        super().__init__(pools, adaptive=isinstance(strength, Adaptive))

        self.settings = settings
        self.strength = strength
        self.connected = connected
        self.calls: Calls | None = calls
        self.step = 0

        self.branches = nn.ModuleDict()
        for name, point in points.items():
            layer_branches = Branches(name, point.width, settings, point.template)
            self.branches[_module_key(name)] = layer_branches

        self._hook({name: point.module for name, point in points.items()}, root)

    @property
    def n_parameters(self) -> int:
        """Weights of all branches, static ones included."""
        return sum(layer.n_parameters for layer in self._by_layer().values())

    # Traced as part of a caller's compiled step it would be compiled anew at every step.
    @never_compiled
    def loss(self, y: Tensor, *, main: Tensor | None = None) -> Tensor:
        """The auxiliary loss of the latest forward pass, times alpha, summed over layers.

        Each forward pass gives one loss; a second one raises rather than be stale.

        Args:
            y: Class indices `(sample,)`, or soft or multi-hot targets `(sample, class)`.
            main: The main loss; for an adaptive `alpha`, and only then.

        Returns:
            A scalar with the graph of the latest forward pass; zero if not `connected`.

        Raises:
            RuntimeError: If the latest pass left nothing to compute a loss from.
            ValueError: If `y` does not fit, or `main` is missing or useless.
        """
        features = ready_features(self._capture, self.layers, self.calls)
        self._check_targets(features, y)
        if isinstance(self.strength, Adaptive) != (main is not None):
            condition = "needed" if main is None else "of use only"
            raise ValueError(f"`main`: the main loss is {condition} with an adaptive alpha")

        synchronise_gradients(self.parameters())

        if not self.connected:
            self._capture.use()
            some_features = features[self.layers[0]][0]
            return some_features.new_zeros(()).to(y.device)

        layer_losses = {name: self._layer_loss(name, calls, y) for name, calls in features.items()}
        strengths = self._layer_strengths(layer_losses, main)

        # A model in parts has layers on several devices.
        weighted_losses = torch.stack(
            [(strengths[name] * loss).to(y.device) for name, loss in layer_losses.items()]
        )
        if self._capture.grad and not weighted_losses.requires_grad:
            raise RuntimeError(
                "the auxiliary loss would train nothing: the features need no gradient (a frozen "
                "backbone?) and no branch is active"
            )

        # Only now: after a refusal the pass may still give its loss.
        self._capture.use()
        self._capture.strengths = strengths
        if self._capture.grad:
            self.step += 1
        return weighted_losses.sum()

    @never_compiled
    def measure(self, y: Tensor) -> xr.Dataset:
        """Loss and accuracy of every branch on the latest forward pass; trains nothing.

        Args:
            y: Class indices `(sample,)`, or soft or multi-hot targets `(sample, class)`. The loss
                of the pass may be taken before or after.

        Returns:
            Dataset with `loss (layer, branch)`, the mean per branch before alpha; `accuracy
            (layer, branch)`, the share of samples whose largest logit is at a class of largest
            target; and `alpha (layer)`, the latest strength (NaN before the first loss). The
            coordinate `trained (branch)` is True for active branches, False for static ones.
            The attribute `loss` names the branches' loss, `n_samples` counts the batch, and
            `orthogonality_error` is the largest entry of `|W W' - I|` over all
            branches `W (class, width)` (of `|W' W - I|` where classes outnumber features):
            rounding, 1e-7 to 1e-6 in float32, if they are orthogonal and static; of any size once
            active ones are trained; about 1 with another `init`.

        Raises:
            RuntimeError: If the latest pass left nothing to measure.
            ValueError: If `y` does not fit.
        """
        features = ready_features(self._capture, self.layers, self.calls, used=True)
        self._check_targets(features, y)

        strengths = self._capture.strengths
        alphas = {name: float(strengths.get(name, float("nan"))) for name in self.layers}
        return measure(self._by_layer(), features, y, alphas, self.step, self._root())

    @never_compiled
    def compression_error(self, x: Any, y: Tensor | None = None) -> xr.Dataset:
        """How far the closed form is from the exact static branches, on this model and input.

        Args:
            x: An input batch for the attached model, which is run in eval mode; a tuple holds
                several arguments, a mapping keyword arguments.
            y: Targets; the model's own predictions if not given.

        Returns:
            Dataset with `cosine (layer, sample)` and `relative_error (layer, sample)` between the
            gradients of the static branches' loss with respect to the features.

        Raises:
            RuntimeError: If the probe is detached.
            ValueError: If `y` does not fit, or there is no closed form for these branches.
        """
        model = self._root()
        if model is None or not self.attached:
            raise RuntimeError("the probe is detached: compression_error needs its model")

        # A loss may still be due for the latest pass: what was captured of it is put back.
        pending_capture = replace(self._capture)
        try:
            with self.listening(), evaluating(model), preserving_rng(), torch.no_grad():
                output = call_model(model, x)
            features = ready_features(self._capture, self.layers, self.calls)
        finally:
            vars(self._capture).update(vars(pending_capture))

        targets = logits_of(output).argmax(-1) if y is None else y
        self._check_targets(features, targets)
        return compression_error(self._by_layer(), features, targets, model)

    def get_extra_state(self) -> dict[str, Any]:
        """Beside the weights, a state has the step, and what decides branches not stored."""
        settings = self.settings
        return {
            "step": self.step,
            "method": settings.method,
            "seed": settings.seed,
            "n": settings.n,
            "active": settings.active,
            "init": name_of(settings.init),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved step; compressed branches must be those that were saved."""
        names_to_compare = ["method"]
        if self.settings.method == "compressed":
            # Static branches are drawn anew: these decide whether they come out the same.
            names_to_compare += ["seed", "n", "active", "init"]

        own_state = self.get_extra_state()
        for name in names_to_compare:
            if state[name] != own_state[name]:
                raise ValueError(
                    f"`{name}`: expected the saved probe's {state[name]}, got {own_state[name]}"
                )
        self.step = state["step"]

    def __repr__(self) -> str:
        settings = self.settings
        attachment = "attached" if self.attached else "detached"
        heading = (
            f"Probe(n={settings.n}, classes={settings.classes}, method={settings.method!r}, "
            f"{attachment})"
        )
        return f"{heading}\n{table_of_points(settings, self._by_layer(), self.pools)}"

    def _layer_loss(self, name: str, calls: list[Tensor], y: Tensor) -> Tensor:
        """The loss of one layer, where its features are, in the branches' own precision."""
        branches = self._by_layer()[name]
        device = calls[0].device
        if branches.summed.device != device:  # the model has moved
            branches.to(device)

        with _without_autocast(device):
            call_losses = []
            for features in calls:
                rows, row_targets = flatten_positions(features.to(branches.precision), y)
                call_losses.append(branches.loss(rows, row_targets))
            return torch.stack(call_losses).sum()

    def _layer_strengths(
        self, layer_losses: dict[str, Tensor], main: Tensor | None
    ) -> dict[str, Any]:
        if isinstance(self.strength, Adaptive):
            assert main is not None
            return adaptive_strengths(self.strength, main, layer_losses, self._capture.edges)

        return {
            name: scheduled_strength(schedule, self.step)
            for name, schedule in self.strength.items()
        }

    def _check_targets(self, features: dict[str, list[Tensor]], y: Tensor) -> None:
        n_samples = len(features[self.layers[0]][0])
        check_targets(y, n_samples, self.settings.classes)

        for name, calls in features.items():
            if any(len(x) != len(y) for x in calls):
                lengths = ", ".join(str(len(x)) for x in calls)
                raise RuntimeError(f"layer {name!r} gave {lengths} rows for {len(y)} samples")

    def _by_layer(self) -> dict[str, Branches]:
        by_layer: dict[str, Any] = {name: self.branches[_module_key(name)] for name in self.layers}
        return by_layer


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _module_key(name: str) -> str:
    # A ModuleDict takes no dots, nor a name that a dict has, such as "keys".
    return "at_" + name.replace("/", "//").replace(".", "/")
