import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from probes._branches.branches import Branches, Settings
from probes._branches.compression_error import compression_error
from probes._branches.fit_branches import (
    add_rows,
    as_accuracies,
    new_fits,
    set_weights,
    solve_fits,
)
from probes._branches.linear_fit import FitMethod
from probes._branches.measure import (
    Measures,
    PassRows,
    as_dataset,
    describe_settings,
    is_mean_of_rows,
    join_rows,
    mean_of_passes,
    measure_rows,
    rows_of_pass,
)
from probes._branches.rows import LayerFeatures
from probes._branches.strength import Strength, adaptive_strengths, scheduled_strength
from probes._branches.table import table_of_points
from probes._branches.targets import Targets, check_some_count, understand_targets
from probes._branches.unmoved import ADVICE, MovementWatch
from probes._model.attachment_points import Point, class_axis
from probes._model.cut_batches import cut_batches
from probes._model.distributed import synchronise_gradients
from probes._model.latest_features import Calls, ready_features
from probes._model.listener import Listener
from probes._model.never_compiled import never_compiled
from probes._model.next_token import move_ahead
from probes._model.pass_state import PassState
from probes._model.without_fastpath import without_fastpath
from probes.schedules import Adaptive
from resonance_toolkit import (
    Batches,
    call_model,
    check_no_nan,
    check_share,
    count_samples,
    devices_of,
    evaluating,
    is_sharded,
    leave_out_uncounted,
    logits_of,
    name_of,
    preserving,
    preserving_rng,
    provenance,
    resharding,
    take,
    track,
)

# As many samples as `evaluate` runs together by default, where memory allows.
_SAMPLES_PER_BATCH = 64


class Probe(Listener):
    """The branches attached to a model; made by `probes.attach`.

    Its parameters are the active branches only. It is not part of the model: it does not keep the
    model alive, and the model is not in its `state_dict`. The model's hooks are removed when you
    call `detach()`, when the `with` block ends, or when the probe is garbage-collected. A copied or
    unpickled probe is detached; `reattach(model)` attaches it to a model with the same layers.

    Attributes:
        step: How many losses it has given; the argument of an `alpha` schedule. You may set it.
    """

    _watch: MovementWatch | None = None  # until it is known that an optimizer has the branches

    def __init__(
        self,
        root: nn.Module,
        points: dict[str, Point],
        settings: Settings,
        *,
        strength: Strength,
        connected: bool,
        calls: Calls | None,
        reason: str | None = None,
    ) -> None:
        pools = {name: point.pool for name, point in points.items()}
        super().__init__(
            pools, adaptive=isinstance(strength, Adaptive), listen_only=settings.listen_only
        )

        self.settings = settings
        self.strength = strength
        self.connected = connected
        self.calls: Calls | None = calls
        self.reason = reason  # why these layers, if nobody named them
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

    @property
    def n_tensors(self) -> int:
        """Number of tensors if each branch had its own weight: branches times layers."""
        return self.settings.n * len(self.branches)

    # Traced as part of a caller's compiled step it would be compiled again at every step.
    @never_compiled
    def loss(self, y: Tensor, *, main: Tensor | None = None, shift: bool | None = None) -> Tensor:
        """Return the auxiliary loss of the latest forward pass, times alpha, summed over layers.

        Each forward pass gives one loss. A second call raises an error; it never returns the loss
        of an older pass.

        Targets per position need layers with positions: the same number of tokens, or a feature
        map, whose positions take the nearest targets. The loss is then the mean over all positions
        that count. If features are averaged over positions instead, positions that a mask in the
        model's call marks as padding are left out.

        Args:
            y: Class indices `(sample,)` or `(sample, 1)`; soft or multi-hot targets `(sample,
                class)`; or class indices of tokens `(sample, position)` or pixels `(sample,
                height, width)`, with -100 where there is no target. For a causal language model of
                transformers, pass its `labels`; as in its own loss, the target of a position is
                the label after it.
            main: The main loss; needed with an adaptive `alpha`, and only then.
            shift: Whether the target of a token is the label after it. None: yes for causal
                language models of transformers, otherwise no. False: the targets are already
                shifted, or belong to the positions that they are at.

        Returns:
            A scalar with the graph of the latest forward pass; zero if `connected=False`.

        Raises:
            RuntimeError: If the latest pass left nothing to compute a loss from.
            ValueError: If `y` does not fit, or `main` is missing or useless.
        """
        features = self._layer_features()
        targets = self._understand_targets(features, y, shift)
        if isinstance(self.strength, Adaptive) != (main is not None):
            condition = "needed" if main is None else "of use only"
            raise ValueError(f"`main`: the main loss is {condition} with an adaptive alpha")

        synchronise_gradients(self.parameters())

        # Labels may have stayed on the CPU; the main loss is where the model ends.
        device = y.device
        if device.type == "cpu":
            device = features[self.layers[-1]].calls[-1].device

        self._capture.targets = targets
        if not self.connected:
            self._capture.use()
            return features[self.layers[0]].calls[0].new_zeros(()).to(device)

        layer_rows = {name: self._layer_rows(layer, targets) for name, layer in features.items()}
        check_some_count(targets, [rows for calls in layer_rows.values() for rows, _ in calls])
        layer_losses = {name: self._layer_loss(name, rows) for name, rows in layer_rows.items()}
        strengths = self._layer_strengths(layer_losses, main)

        # A model in parts has layers on several devices.
        weighted_losses = torch.stack(
            [(strengths[name] * loss).to(device) for name, loss in layer_losses.items()]
        )
        trains = self._capture.grad or (self.listen_only and torch.is_grad_enabled())
        if trains and not weighted_losses.requires_grad:
            if self.listen_only:
                raise RuntimeError(
                    "the loss of a probe that only listens would train nothing: its branches need "
                    "no gradient (frozen, or not among what torch.func differentiates by?)"
                )
            raise RuntimeError(
                "the auxiliary loss would train nothing: the features need no gradient (a frozen "
                "backbone?) and no branch is active"
            )

        # Only now: after a refusal the pass may still give its loss.
        self._capture.use()
        self._capture.strengths = strengths
        if trains:
            self.step += 1
            self._warn_if_unmoved()
        return weighted_losses.sum()

    @never_compiled
    def measure(self, y: Tensor | None = None, *, shift: bool | None = None) -> xr.Dataset:
        """Measure loss and accuracy of every branch on the latest forward pass, without training.

        Args:
            y: Class indices `(sample,)`, soft or multi-hot targets `(sample, class)`, or class
                indices of positions, as in `loss`. You may call `loss` before or after. None
                takes the targets that `loss` was called with, which must come before then.
            shift: As in `loss`.

        Returns:
            Dataset with `loss (layer, branch)`, the mean per branch before alpha; `accuracy
            (layer, branch)`, the share of samples (or positions that count) whose largest logit
            is at a class with the largest target, NaN if none counts; and `alpha (layer)`, the
            latest strength (NaN before the first loss). The coordinate `trained (branch)` is True
            for active branches, False for static ones.
            The attribute `loss` names the branches' loss, `targets` says how `y` was understood,
            and `n_samples` is the size of the batch. `orthogonality_error` is the largest entry of
            `|W W' - I|` over the weights `W (class, width)` of all branches (of `|W' W - I|` if
            there are more classes than features). It is a rounding error, 1e-7 to 1e-6 in float32,
            if all branches are orthogonal and static; of any size once active branches are
            trained; and about 1 with another `init`.

        Raises:
            RuntimeError: If the latest pass left nothing to measure.
            ValueError: If `y` does not fit, or there is neither `y` nor a loss of the pass.
        """
        features = self._layer_features(may_be_used=True)
        if y is not None:
            targets = self._understand_targets(features, y, shift)
        elif self._capture.targets is not None:
            targets = self._capture.targets
        else:
            raise ValueError(
                "`y`: expected targets, since no loss of the latest forward pass was taken; give "
                "them, or call probe.loss(y) first"
            )

        branches = self._by_layer()
        measures = measure_rows(branches, rows_of_pass(branches, features, targets))
        return self._as_dataset("probes.Probe.measure", measures, targets, len(targets.values))

    @never_compiled
    def evaluate(
        self, data: Any, *, samples: int | None = None, batch_size: int | None = None, seed: int = 0
    ) -> xr.Dataset:
        """Measure loss and accuracy of every branch over a whole dataset, without training.

        The attached model runs in eval mode, and is left as it was found. If you have not yet
        called `loss` for your latest forward pass, you may still do so afterwards.

        Args:
            data: `(inputs, targets)`, a mapping with `labels`, a Dataset, a DataLoader or a list of
                batches; see `resonance.take`. Targets as in `loss`. `labels` in a mapping are
                understood as by the model's own loss; targets of tokens in a pair belong to the
                positions that they are at.
            samples: How many samples to draw; None takes all.
            batch_size: Samples per batch; it affects memory only, not the result. None takes up to
                64, as many as memory for their logits allows. A callable `loss` that is not one
                of torch's sees all rows at once, so their features are kept until the end.
            seed: Determines which samples are drawn.

        Returns:
            Dataset as returned by `measure`, with means over all targets that count, and
            `n_targets (layer)`, the number of these.

        Raises:
            RuntimeError: If the probe is detached.
            ValueError: If targets do not fit.

        Warns:
            UserWarning: If a causal language model's targets in a pair are the tokens it reads.

        Examples:
            >>> import probes
            >>> model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
            >>> probe = probes.attach(model, "0", n=2)
            >>> result = probe.evaluate((torch.randn(10, 4), torch.arange(10) % 3), batch_size=4)
            >>> result["accuracy"].sizes, result.attrs["n_samples"]
            (Frozen({'layer': 1, 'branch': 2}), 10)
        """
        model = self._attached_model("evaluate")
        batches = self._take_batches(model, data, samples, batch_size, seed)
        return self._evaluate_batches(model, batches)

    @never_compiled
    def fit(
        self,
        data: Any,
        *,
        test: Any = None,
        method: FitMethod = "ridge",
        penalty: float = 1.0,
        samples: int | None = None,
        batch_size: int | None = None,
        level: float = 0.95,
        seed: int = 0,
    ) -> xr.Dataset:
        """Fit the branches of a listen-only probe on a model that does not change.

        The attached model runs once over the data, in eval mode, and is left as it was found. With

            "ridge":     sum over rows of |target - W h - b|^2  +  penalty * |W|^2
            "logistic":  sum over rows of loss(W h + b, target)  +  penalty / 2 * |W|^2

        the weight and bias of every layer are set to the minimum. Ridge is solved in closed form,
        from sums of `width^2` numbers per layer, however many samples there are. Logistic uses
        L-BFGS on features that are kept in memory, with the branches' own loss (`loss="ce"` in
        attach: multinomial; `"bce"`: one against the others, summed over classes). Class targets
        are one-hot. The results equal scikit-learn's `Ridge(alpha=penalty)`, of which
        `RidgeClassifier` takes the largest output, and `LogisticRegression(C=1 / penalty)`. With
        several processes, each fits its own data.

        Args:
            data: As for `evaluate`.
            test: Data to measure the fit on. None measures it on `data` itself, on which wide
                layers look better than they are.
            method: `"ridge"` or `"logistic"`.
            penalty: Strength of the penalty on the weights; biases are not penalised.
            samples: How many of `data` to draw; None takes all.
            batch_size: As for `evaluate`.
            level: Confidence level of the interval.
            seed: Determines which samples are drawn.

        Returns:
            Dataset with `accuracy (layer)` as in `evaluate`; `accuracy_low` and `accuracy_high`,
            Wilson's interval, which assumes independent targets (tokens and pixels of one sample
            are not quite independent); `loss (layer)`, the branches' own mean loss; and `n_targets
            (layer)`, how many were measured. The attribute `n_fitted` is the number of samples
            fitted; `measured_on` says which data the accuracy was measured on.

        Raises:
            RuntimeError: If the probe is detached.
            ValueError: If an argument or a target does not fit, or the probe does not have exactly
                one listen-only branch per layer.

        Examples:
            The layer returns its input, 0 or 1, which is the class. For class 1, inputs and targets
            are both -0.5 and 0.5 about their mean 0.5, so without a penalty W = 1 and b = 0.

            >>> import probes
            >>> model = nn.Sequential(nn.Identity(), nn.Linear(1, 2))
            >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
            >>> probe = probes.attach(model, "0", sample=x, listen_only=True)
            >>> probe.fit((x, y), penalty=0)["accuracy"].values
            array([1.])
            >>> weight, bias = next(probe.parameters())[0, 1].tolist()
            >>> abs(round(weight, 5)), abs(round(bias, 5))
            (1.0, 0.0)
        """
        model = self._attached_model("fit")
        level = check_share("level", level)
        branches = self._by_layer()
        fits = new_fits(branches, method, penalty)

        batches = self._take_batches(model, data, samples, batch_size, seed)
        test_batches = batches
        if test is not None:
            test_batches = self._take_batches(model, test, None, batch_size, seed)

        with self._measuring(model):
            for rows, _ in self._rows_of_batches(model, batches):
                add_rows(fits, rows)

        # Only now: data that do not fit leave the branches as they were.
        set_weights(branches, solve_fits(fits, batches))
        self._watch = None  # a fit moves them as an optimizer would

        evaluation = self._evaluate_batches(model, test_batches)
        attributes = {
            **evaluation.attrs,
            "made_by": "probes.Probe.fit",
            "method": method,
            "penalty": float(penalty),
            "level": level,
            "n_fitted": sum(count_samples(y) for _, y in batches),
            "measured_on": "fitted data" if test is None else "test",
        }
        return as_accuracies(evaluation, level).assign_attrs(attributes)

    @never_compiled
    def compression_error(
        self, x: Any, y: Tensor | None = None, *, shift: bool | None = None
    ) -> xr.Dataset:
        """Measure the error of `method="compressed"` against exact branches on a batch of yours.

        Args:
            x: An input batch for the attached model, which is run in eval mode; a tuple holds
                several arguments, a mapping keyword arguments.
            y: Targets; the model's own predictions if not given.
            shift: As in `loss`; predictions are never shifted.

        Returns:
            Dataset with `cosine (layer, sample)` and `relative_error (layer, sample)` between the
            gradients of the static branches' loss with respect to the features.

        Raises:
            RuntimeError: If the probe is detached.
            ValueError: If `y` does not fit, or there is no closed form for these branches.
        """
        model = self._attached_model("compression_error")

        with self.keeping_pass():
            with (
                self.listening(),
                evaluating(model),
                preserving_rng(devices_of(model)),
                torch.no_grad(),
            ):
                output = call_model(model, x)
            features = self._layer_features()

        if y is None:
            logits = logits_of(output)
            y = logits.argmax(class_axis(logits))
            shift = False
        targets = self._understand_targets(features, y, shift)
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
            # Static branches are drawn again: these settings decide whether they come out the same.
            names_to_compare += ["seed", "n", "active", "init"]

        own_state = self.get_extra_state()
        for name in names_to_compare:
            if state[name] != own_state[name]:
                raise ValueError(
                    f"`{name}`: expected the saved probe's {state[name]}, got {own_state[name]}"
                )
        self.step = state["step"]

        # Loading changes the branches as an optimizer would.
        self._watch = None

    def __repr__(self) -> str:
        settings = self.settings
        attachment = "attached" if self.attached else "detached"
        heading = (
            f"Probe(n={settings.n}, classes={settings.classes}, method={settings.method!r}, "
            f"{'listen_only=True, ' if settings.listen_only else ''}{attachment})"
        )
        if self.reason is not None:
            heading = f"{heading}\nlayers found: {self.reason}"
        return f"{heading}\n{table_of_points(settings, self._by_layer(), self.pools)}"

    def _layer_features(self, *, may_be_used: bool = False) -> dict[str, LayerFeatures]:
        """What the latest pass has left, or a refusal; `used`: also after its loss."""
        calls = ready_features(
            self._capture, self.layers, self.calls, may_be_used=may_be_used, depth=1
        )
        return {
            name: LayerFeatures(
                name,
                calls[name],
                pool,
                self._capture.counts.get(name),
                is_of_encoder=name in self._capture.encoder_layers,
            )
            for name, pool in self.pools.items()
        }

    def _understand_targets(
        self, features: dict[str, LayerFeatures], y: Any, shift: bool | None
    ) -> Targets:
        is_training = self._capture.state is PassState.READY and self._capture.grad
        y = move_ahead(y, self._root(), self._capture.input_ids, shift, "y")
        token_counts = [layer.n_tokens for layer in features.values()]
        targets = understand_targets(
            y,
            len(features[self.layers[0]].calls[0]),
            self.settings.classes,
            loss=self.settings.loss,
            token_counts=token_counts,
            may_wait=self.step == 0 or not is_training,
        )

        for layer in features.values():
            layer.check(targets)
        return targets

    def _layer_rows(self, layer: LayerFeatures, targets: Targets) -> list[tuple[Tensor, Tensor]]:
        """Rows and their targets of each call of a layer, in the branches' own precision."""
        precision = self._by_layer()[layer.name].precision
        with _without_autocast(layer.calls[0].device):
            return [layer.rows(features.to(precision), targets) for features in layer.calls]

    def _layer_loss(self, name: str, calls: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The loss of one layer, where its features are."""
        branches = self._by_layer()[name]
        device = calls[0][0].device
        if branches.summed.device != device:  # the model has moved
            branches.to(device)

        with _without_autocast(device):
            calls = [(branches.as_inputs(rows), row_targets) for rows, row_targets in calls]

            # A coarse map may have no position near a target that counts: it adds nothing.
            call_losses = [
                branches.loss(rows, row_targets) if len(rows) else rows.sum()
                for rows, row_targets in calls
            ]
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

    def _as_dataset(
        self, made_by: str, measures: Measures, targets: Targets, n_samples: int
    ) -> xr.Dataset:
        strengths = self._capture.strengths
        attributes = provenance(
            made_by,
            self._root(),
            n_samples=n_samples,
            targets=targets.meaning(self.settings.loss),
            layers_reason=self.reason or "named in the call",
            **describe_settings(self.settings),
        )
        return as_dataset(
            self._by_layer(),
            measures,
            alphas={name: float(strengths.get(name, float("nan"))) for name in self.layers},
            step=self.step,
            attributes=attributes,
        )

    def _attached_model(self, verb: str) -> nn.Module:
        model = self._root()
        if model is None or not self.attached:
            raise RuntimeError(f"the probe is detached: {verb} needs its model")
        return model

    def _take_batches(
        self, model: nn.Module, data: Any, samples: int | None, batch_size: int | None, seed: int
    ) -> Batches:
        batches = take(data, samples, seed, model=model, batch_size=batch_size)
        batches = leave_out_uncounted(batches)
        if batch_size is not None:
            return batches
        return cut_batches(batches, self.settings.classes, most_samples=_SAMPLES_PER_BATCH)

    def _rows_of_batches(
        self, model: nn.Module, batches: Batches
    ) -> Iterator[tuple[PassRows, Targets]]:
        """Run the model on one batch after another, for a body in `_measuring`."""
        branches = self._by_layer()
        for inputs, y in track(batches, "branches", unit="batch"):
            call_model(model, inputs)
            features = self._layer_features()
            targets = self._understand_targets(features, y, shift=False)
            yield rows_of_pass(branches, features, targets), targets

    def _evaluate_batches(self, model: nn.Module, batches: Batches) -> xr.Dataset:
        branches = self._by_layer()
        is_mean = is_mean_of_rows(self.settings.loss)
        passes = []
        kept_rows = []
        with self._measuring(model):
            for rows, batch_targets in self._rows_of_batches(model, batches):
                targets = batch_targets
                if is_mean:
                    passes.append(measure_rows(branches, rows))
                else:
                    kept_rows.append(rows)

            measures = (
                mean_of_passes(passes) if is_mean else measure_rows(branches, join_rows(kept_rows))
            )
        if np.isnan(measures.loss[measures.n_targets > 0]).any():
            check_no_nan(batches)

        n_samples = sum(count_samples(y) for _, y in batches)
        result = self._as_dataset("probes.Probe.evaluate", measures, targets, n_samples)
        long_name = {"long_name": "targets that count"}
        return result.assign(n_targets=("layer", measures.n_targets, long_name))

    @contextmanager
    def _measuring(self, model: nn.Module) -> Iterator[None]:
        """Let the body run the model in eval mode and look at its features, and leave no mark."""
        with ExitStack() as stack:
            stack.enter_context(self.keeping_pass())
            stack.enter_context(preserving(model, values=not is_sharded(model)))
            stack.enter_context(resharding(model))
            stack.enter_context(evaluating(model))
            stack.enter_context(self.listening())
            stack.enter_context(without_fastpath())
            stack.enter_context(torch.no_grad())
            yield

    def _warn_if_unmoved(self) -> None:
        if self._watch is None:
            self._watch = MovementWatch(self.parameters())
        if self._watch.is_over:
            return

        model = self._root()
        if model is None or is_sharded(model):
            # What gathers parameters changes them, too.
            self._watch.is_over = True
        elif self._watch.finds_unmoved(self.parameters(), model.parameters()):
            # The user's line is three calls up, as `loss` is wrapped by `torch.compiler.disable`.
            warnings.warn(ADVICE, stacklevel=4)

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
