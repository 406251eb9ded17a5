"""What `capturing` hands to its body: it takes in attention calls, and gives a Dataset."""

import contextlib
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import xarray as xr
from torch import nn

from attention._call import Call, Comparison
from attention._dataset import make_dataset
from attention._layout import Layout, find_layout
from attention._locate import Place, first_input
from attention._padding import Padding, find_padding
from attention._read import Reading, finish, full_precision, read
from attention._settings import Settings
from resonance_toolkit import NotApplicableError, provenance, unwrap


class ClassTokenNotSeenError(ValueError):
    """The model has a class token, but no layer whose attention was seen has it first."""


@dataclass(frozen=True)
class Tokens:
    """How many tokens a model puts before the patches, and whether a class token is the first."""

    prefix: int
    has_class_token: bool


@dataclass
class Pass:
    """One forward pass: the modules by which it was entered, and what its layers gave."""

    entry_modules: list[nn.Module]
    n_samples: int
    is_sequence: bool
    padding: Padding | None
    readings: dict[str, Reading] = field(default_factory=dict)


class Recording:
    """What `capturing` has seen; `dataset()` lays it out.

    Args:
        model: Whose attention it is.
        settings: What was asked for.
        tokens: What the model puts before the patches.
        chosen_layers: Attention inside these is kept; None keeps all.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        tokens: Tokens,
        chosen_layers: set[str] | None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._tokens = tokens
        self._chosen_layers = chosen_layers

        self._skipped_layers: list[str] = []
        self._passes: list[Pass] = []
        self._current_frame: FrameType | None = None
        self._comparisons: dict[str, Comparison] = {}
        self._is_closed = False

        self.outputs: list[Any] = []  # of the model, by pass, if they belong in the result
        self.more_attributes: dict[str, Any] = {}  # what the caller adds to those of the result
        self.image_sizes: Collection[tuple[int, int]] = ()

    def __repr__(self) -> str:
        model_name = type(unwrap(self._model)).__name__
        n_layers = len(self._passes[0].readings) if self._passes else 0
        state = "complete" if self._is_closed else "not complete"
        return (
            f"Recording({model_name}, queries={self._settings.queries!r}, "
            f"keys={self._settings.keys!r}, n_passes={len(self._passes)}, n_layers={n_layers}, "
            f"{state})"
        )

    def dataset(self) -> xr.Dataset:
        """Lay out what was seen: forward passes follow one another along `sample`.

        Returns:
            As from `attention.capture`, without `prediction`: the caller has it.

        Raises:
            ValueError: If `capturing` has not ended (or ended with an exception), or the forward
                passes differ in their layers.
        """
        if not self._is_closed:
            raise ValueError("the recording is not complete: leave the body of `capturing` first")

        settings = self._settings
        attributes = provenance(
            "attention.capture",
            self._model,
            queries=settings.queries,
            keys=settings.keys,
            threshold=settings.threshold,
            mass=settings.mass,
            **self.more_attributes,
        )
        readings = [forward_pass.readings for forward_pass in self._passes]
        return make_dataset(readings, settings, attributes, self.outputs)

    @torch.no_grad()
    def receive(self, call: Call, place: Place) -> None:
        """Take in one attention call, while it runs."""
        if self._chosen_layers is not None and not _is_within(place.layer, self._chosen_layers):
            self._skipped_layers.append(place.layer)
            return

        self._check_class_token()
        current_pass = self._enter_pass(call, place)
        _check_groups(call, place, current_pass.n_samples)
        layout = self._find_layout(call, place, current_pass)

        # Each layer is held against its own output once: rows of other passes are read alike.
        name = _unused_name(place.layer, current_pass.readings)
        is_first_time = name not in self._comparisons
        real_queries = None
        if current_pass.padding is not None:
            real_queries = current_pass.padding.find_real_queries(call, place.layer, layout)

        with full_precision(call.device):
            reading = Reading(call.kind, layout, current_pass.n_samples, call.shape, real_queries)
            comparison = read(call, reading, self._settings, check=is_first_time)

        if comparison is not None:
            self._comparisons[name] = comparison
        current_pass.readings[name] = reading

    @torch.no_grad()
    def close(self, unread: Collection[str], sideways: Collection[str]) -> None:
        """Finish what waits, compare with the kernels, and let go of the forward pass.

        Args:
            unread: Layers with a softmax that did not turn out to be attention.
            sideways: Layers that multiply with a softmax along another axis than the last.

        Raises:
            NotApplicableError: If no attention was seen.
            ValueError: If the chosen layers have none, or one of them none that can be read.
            RuntimeError: If what was read is not what a layer used.
        """
        self._current_frame = None
        if not self._passes:
            self._refuse_nothing_seen([*unread, *sideways])

        reasons = (
            (unread, "no product of matrices follows it"),
            (sideways, "it runs along another axis than the last"),
        )
        for layers, reason in reasons:
            if layers:
                text = f"a softmax was left out, as {reason}, in {', '.join(layers)}"
                warnings.warn(text, stacklevel=_stack_level_of_user())

        self._check_no_linear_attention(sideways)
        self._check_reproduction()
        for forward_pass in self._passes:
            readings = list(forward_pass.readings.values())
            if self._settings.queries == "cls" and not any(r.layout.prefix for r in readings):
                raise ClassTokenNotSeenError(
                    '`queries`: no layer seen has the class token first; use "mean", "all" or '
                    "indices"
                )
            finish(readings, self._settings)
        self._is_closed = True

    def _enter_pass(self, call: Call, place: Place) -> Pass:
        """Return the forward pass that a call belongs to, a new one if it begins one."""
        latest = self._passes[-1] if self._passes else None
        if latest is not None and place.outermost_frame is self._current_frame:
            return latest
        self._current_frame = place.outermost_frame

        # Entered by another module: someone calls the parts of the model one by one.
        if latest is not None and not any(
            place.outermost_module is module for module in latest.entry_modules
        ):
            latest.entry_modules.append(place.outermost_module)
            return latest

        model_input = first_input(place.outermost_frame)
        n_samples = call.n_samples
        has_samples_first = getattr(call.module, "batch_first", True)
        if model_input is not None and n_samples != 1 and has_samples_first:
            n_samples = len(model_input)

        is_image = bool(self.image_sizes) or (model_input is not None and model_input.dim() > 3)
        padding = find_padding(place.outermost_frame, unwrap(self._model))
        new_pass = Pass([place.outermost_module], n_samples or call.shape[0], not is_image, padding)
        self._passes.append(new_pass)
        return new_pass

    def _check_class_token(self) -> None:
        # Not before attention is seen: a model without any is to be told just that.
        if self._settings.queries == "cls" and not self._tokens.has_class_token:
            raise ValueError(
                '`queries`: expected "auto", "mean", "all" or indices, got "cls", but the model '
                "has no class token; if it has, say with `prefix=` how many tokens come before "
                "the patches"
            )

    def _find_layout(self, call: Call, place: Place, current_pass: Pass) -> Layout:
        n_groups, _, n_queries, n_keys = call.shape
        if call.kind == "channel":
            return Layout(0, None, None)

        # Windows hold patches alone.
        has_windows = n_groups != current_pass.n_samples
        layout = find_layout(
            n_queries,
            n_keys,
            prefix=0 if has_windows else self._tokens.prefix,
            image_sizes=None if current_pass.is_sequence else self.image_sizes,
        )
        if self._settings.keys == "patches" and layout.prefix >= n_keys:
            raise ValueError(
                f"`prefix`: expected fewer tokens before the patches than the {n_keys} keys of "
                f'layer {place.layer!r}, got {layout.prefix}; `keys="all"` leaves none out'
            )
        return layout

    def _check_no_linear_attention(self, sideways: Collection[str]) -> None:
        for name in chain.from_iterable(each_pass.readings for each_pass in self._passes):
            if name.partition("#")[0] in sideways:
                raise ValueError(
                    f"layer {name!r} multiplies with softmaxes along two different axes, as linear "
                    "attention does, which has no map from queries to keys: leave it out with "
                    "`layers=`"
                )

    def _check_reproduction(self) -> None:
        for name, comparison in self._comparisons.items():
            error = comparison.error()
            if error > 1:  # NaN, of a row that sees nothing or a broken model, tells nothing
                raise RuntimeError(
                    f"layer {name!r}: the attention read does not reproduce the layer's own "
                    f"({error:.3g} times what rounding explains), so it is not returned"
                )

    def _refuse_nothing_seen(self, unread: Collection[str]) -> NoReturn:
        if self._skipped_layers:
            raise ValueError(
                f"`layers`: no attention in {', '.join(sorted(self._chosen_layers or []))}; "
                f"there is some in {', '.join(dict.fromkeys(self._skipped_layers))}"
            )

        text = (
            "`model`: no attention was seen. Either it was not called or has none (separable and "
            "linear attention have no map), or its attention is out of sight: a kernel that is no "
            "torch function (set the model to sdpa or eager), torch.jit, or another thread "
            "(DataParallel)."
        )
        if unread:
            text += (
                " A softmax that no product of matrices follows, or along another axis than the "
                f"last, is in {', '.join(unread)}."
            )
        raise NotApplicableError(text)


def _check_groups(call: Call, place: Place, n_samples: int) -> None:
    n_groups = call.shape[0]
    if not n_samples:
        raise ValueError("the input has no samples: expected one at least")
    if n_groups % n_samples:
        raise ValueError(
            f"layer {place.layer!r} attends in {n_groups} groups, which is not a multiple "
            f"of the {n_samples} samples: expected inputs with the samples first"
        )


def _stack_level_of_user() -> int:
    """Count the frames from the caller of this function to the user's own line, for a warning."""
    # Between them are this package, contextlib and torch's `no_grad`, more or fewer of them.
    folders = (str(Path(__file__).parent), contextlib.__file__, str(Path(torch.__file__).parent))
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
        level += 1
    return level


def _is_within(layer: str, chosen_layers: set[str]) -> bool:
    return any(layer == name or layer.startswith(f"{name}.") for name in chosen_layers)


def _unused_name(layer: str, used_names: Collection[str]) -> str:
    names = chain([layer], (f"{layer}#{number}" for number in count(2)))
    return next(name for name in names if name not in used_names)
