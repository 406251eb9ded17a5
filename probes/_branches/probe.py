from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from probes._branches.adaptive_strength import adaptive_weights
from probes._branches.branches import Branches, Settings
from probes._branches.compression_error import compression_error
from probes._branches.measure import measure
from probes._branches.strength import Alpha, resolve_alpha, strength_at
from probes._branches.table import summarise
from probes._branches.targets import check_targets, rows_of
from probes._model.call_model import call_model
from probes._model.distributed import synchronise_gradients
from probes._model.dry_run import Point
from probes._model.latest_features import ready_features
from probes._model.listener import Listener
from probes.schedules import Adaptive
from resonance_toolkit import evaluating, first_tensor, preserving_rng


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
        alpha: Alpha,
        connected: bool,
        calls: str | None,
    ) -> None:
        strength = resolve_alpha(alpha, list(points))
        pools = {name: point.pool for name, point in points.items()}
        super().__init__(pools, adaptive=isinstance(strength, Adaptive))
        self.settings, self.connected, self.calls = settings, connected, calls
        self.strength = strength
        self.branches = nn.ModuleDict(
            {_key(k): Branches(k, p.width, settings, p.template) for k, p in points.items()}
        )
        self.step = 0
        self._hook({name: point.module for name, point in points.items()}, root)

    @property
    def n_parameters(self) -> int:
        """Weights of all branches, static ones included."""
        return sum(b.n_parameters for b in self._by_layer().values())

    # Traced as part of a caller's compiled step it would be compiled anew at every step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
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
        self._check(features, y)
        synchronise_gradients(self.parameters())
        if isinstance(self.strength, Adaptive) != (main is not None):
            wanted = "needed" if main is None else "of use only"
            raise ValueError(f"`main`: the main loss is {wanted} with an adaptive alpha")
        if not self.connected:
            self._capture.use()
            return features[self.layers[0]][0].new_zeros(()).to(y.device)
        parts = {name: self._part(name, calls, y) for name, calls in features.items()}
        strengths = self._strengths(parts, main)
        total = torch.stack([(strengths[k] * part).to(y.device) for k, part in parts.items()])
        if self._capture.grad and not total.requires_grad:
            raise RuntimeError(
                "the auxiliary loss would train nothing: the features need no gradient (a frozen "
                "backbone?) and no branch is active"
            )
        self._capture.use()
        self._capture.strengths = strengths
        self.step += self._capture.grad
        return total.sum()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def measure(self, y: Tensor) -> xr.Dataset:
        """Loss and accuracy of every branch on the latest forward pass; trains nothing.

        Args:
            y: As for `loss`, which may be called before or after.

        Returns:
            Dataset with `loss (layer, branch)`, the mean per branch before alpha; `accuracy
            (layer, branch)`, the share of samples whose largest logit is at a class of largest
            target; and `alpha (layer)`, the latest strength (NaN before the first loss). The
            coordinate `trained (branch)` is True for active branches, False for static ones.
            The attribute `orthogonality_error` is the largest entry of `|W W' - I|` over all
            branches `W (class, width)` (of `|W' W - I|` where classes outnumber features):
            rounding, 1e-7 to 1e-6 in float32, if they are orthogonal and static; of any size once
            active ones are trained; about 1 with another `init`.
        """
        features = ready_features(self._capture, self.layers, self.calls, used=True)
        self._check(features, y)
        strengths = self._capture.strengths
        alphas = {name: float(strengths.get(name, float("nan"))) for name in self.layers}
        return measure(self._by_layer(), features, y, alphas, self.step, self._root())

    def compression_error(self, x: Any, y: Tensor | None = None) -> xr.Dataset:
        """How far the closed form is from the exact static branches, on this model and input.

        Args:
            x: An input batch for the attached model, which is run in eval mode; a tuple holds
                several arguments, a dict keyword arguments.
            y: Targets; the model's own predictions if not given.

        Returns:
            Dataset with `cosine (layer, sample)` and `relative_error (layer, sample)` between the
            gradients of the static branches' loss with respect to the features.
        """
        model = self._root()
        if model is None or not self.attached:
            raise RuntimeError("the probe is detached: compression_error needs its model")
        pending = replace(self._capture)
        try:
            with self.listening(), evaluating(model), preserving_rng(), torch.no_grad():
                output = call_model(model, x)
            features = ready_features(self._capture, self.layers, self.calls)
        finally:
            vars(self._capture).update(vars(pending))  # a loss may still be due for these
        if y is None:
            logits = first_tensor(getattr(output, "logits", output))
            assert logits is not None
            y = logits.argmax(-1)
        self._check(features, y)
        return compression_error(self._by_layer(), features, y, model)

    def get_extra_state(self) -> dict[str, Any]:
        """Beside the weights, a state has the step, and what decides branches not stored."""
        s = self.settings
        init = getattr(s.init, "__qualname__", type(s.init).__qualname__)
        drawn = {"seed": s.seed, "n": s.n, "active": s.active, "init": init}
        return {"step": self.step, "method": s.method, **drawn}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved step; compressed branches must be those that were saved."""
        mine = self.get_extra_state()
        redrawn = self.settings.method == "compressed"
        for name in ("method", "seed", "n", "active", "init") if redrawn else ("method",):
            if state[name] != mine[name]:
                raise ValueError(
                    f"`{name}`: expected the saved probe's {state[name]}, got {mine[name]}"
                )
        self.step = state["step"]

    def __repr__(self) -> str:
        return summarise(self.settings, self._by_layer(), self.pools, attached=self.attached)

    def _part(self, name: str, calls: list[Tensor], y: Tensor) -> Tensor:
        """The loss of one layer, where its features are, in the branches' own precision."""
        kind, branches = calls[0].device.type, self._by_layer()[name]
        if branches.summed.device != calls[0].device:  # the model has moved
            branches.to(calls[0].device)
        known = torch.amp.is_autocast_available(kind)
        with torch.autocast(kind, enabled=False) if known else nullcontext():
            pieces = [branches.loss(*rows_of(y, x.to(branches.precision))) for x in calls]
            return torch.stack(pieces).sum()

    def _strengths(self, parts: dict[str, Tensor], main: Tensor | None) -> dict[str, Any]:
        if isinstance(self.strength, Adaptive):
            assert main is not None
            return adaptive_weights(self.strength, main, parts, self._capture.edges)
        return {name: strength_at(f, self.step) for name, f in self.strength.items()}

    def _check(self, features: dict[str, list[Tensor]], y: Tensor) -> None:
        check_targets(y, len(features[self.layers[0]][0]), self.settings.classes)
        for name, calls in features.items():
            if any(len(x) != len(y) for x in calls):
                found = ", ".join(str(len(x)) for x in calls)
                raise RuntimeError(f"layer {name!r} gave {found} rows for {len(y)} samples")

    def _by_layer(self) -> dict[str, Branches]:
        return {name: self.branches[_key(name)] for name in self.layers}  # type: ignore[misc]


def _key(name: str) -> str:
    # A ModuleDict takes no dots, nor a name that a dict has, such as "keys".
    return "at_" + name.replace("/", "//").replace(".", "/")
