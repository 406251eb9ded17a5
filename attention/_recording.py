import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import chain, count
from types import FrameType
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from attention._dataset import assemble
from attention._call import Call
from attention._layout import Layout, find_layout
from attention._locate import Place, first_input
from attention._read import Reading, Settings, finish, full_precision, read
from resonance_toolkit import provenance


@dataclass
class Pass:
    """One forward pass: the modules by which it was entered, and what its layers gave."""

    entered: list[nn.Module]
    samples: int
    sequence: bool
    readings: dict[str, Reading] = field(default_factory=dict)


class Recording:
    """What `capturing` has seen; `dataset()` lays it out."""

    def __init__(self, model: nn.Module, settings: Settings, chosen: set[str] | None) -> None:
        self._model = model
        self._settings = settings
        self._chosen = chosen
        self._skipped: list[str] = []
        self._passes: list[Pass] = []
        self._frame: FrameType | None = None
        self._errors: dict[str, tuple[Callable[[], Tensor], float]] = {}
        self._closed = False
        self.output: Any = None  # of the model, if it belongs in the result
        self.image_sizes: Collection[tuple[int, int]] = ()

    def dataset(self) -> xr.Dataset:
        """Lay out what was seen: forward passes follow one another along `sample`.

        Returns:
            As from `attention.capture`, without `prediction`: the caller has it.

        Raises:
            ValueError: If `capturing` has not ended (or ended with an exception), or the forward
                passes differ in their layers.
        """
        if not self._closed:
            raise ValueError("the recording is not complete: leave the body of `capturing` first")
        settings = self._settings
        attributes = provenance(
            "attention.capture",
            self._model,
            queries=settings.queries,
            keys=settings.keys,
            threshold=settings.threshold,
            mass=settings.mass,
        )
        readings = [one.readings for one in self._passes]
        return assemble(readings, settings, attributes, self.output)

    @torch.no_grad()
    def receive(self, call: Call, place: Place) -> None:
        """Take in one attention call, while it runs."""
        if self._chosen is not None and not _is_within(place.layer, self._chosen):
            self._skipped.append(place.layer)
            return
        current = self._current_pass(call, place)
        n_groups, _, n_queries, n_keys = call.shape
        if not current.samples:
            raise ValueError("the input has no samples: expected one at least")
        if n_groups % current.samples:
            raise ValueError(
                f"layer {place.layer!r} attends in {n_groups} groups, no multiple of the "
                f"{current.samples} samples: expected inputs with the samples first"
            )
        name = _unused(place.layer, current.readings)
        layout = Layout(0, None, None)
        if call.kind != "channel":
            layout = find_layout(
                n_queries,
                n_keys,
                prefix=0 if n_groups != current.samples else self._settings.prefix,
                image_sizes=None if current.sequence else self.image_sizes,
            )
        if self._settings.keys == "patches" and layout.prefix >= n_keys:
            raise ValueError(
                f"`prefix`: expected fewer tokens before the patches than the {n_keys} keys of "
                f'layer {place.layer!r}, got {layout.prefix}; `keys="all"` leaves none out'
            )
        with full_precision(call.device):
            check = name not in self._errors
            reading, error = read(call, layout, current.samples, self._settings, check=check)
        if error is not None:
            self._errors[name] = error, call.tolerance
        current.readings[name] = reading

    @torch.no_grad()
    def close(self, unread: Collection[str], sideways: Collection[str]) -> None:
        """Finish what waits, compare with the kernels, and let go of the forward pass.

        Args:
            unread: Layers with a softmax that did not turn out to be attention.
            sideways: Layers that multiply with a softmax along another axis than the last.
        """
        self._frame = None
        if not self._passes:
            raise ValueError(_nothing_seen(self._chosen, self._skipped, [*unread, *sideways]))
        for layers, reason in (
            (unread, "no product of matrices follows it"),
            (sideways, "it runs along another axis than the last"),
        ):
            if layers:
                text = f"a softmax was left out, as {reason}, in {', '.join(layers)}"
                warnings.warn(text, stacklevel=4)
        for name in chain.from_iterable(one.readings for one in self._passes):
            if name.partition("#")[0] in sideways:
                raise ValueError(
                    f"layer {name!r} multiplies with softmaxes along two different axes, as linear "
                    "attention does, which has no map from queries to keys: leave it out with "
                    "`layers=`"
                )
        for name, (mismatch, tolerance) in self._errors.items():
            error = mismatch().item() / tolerance
            if error > 1:  # NaN, of a row that sees nothing or a broken model, tells nothing
                raise RuntimeError(
                    f"layer {name!r}: the attention read does not reproduce the layer's own "
                    f"({error:.3g} times what rounding explains), so it is not returned"
                )
        for one in self._passes:
            readings = list(one.readings.values())
            if self._settings.queries == "cls" and not any(r.layout.prefix for r in readings):
                raise ValueError(
                    '`queries`: no layer seen has the class token first; use "mean", "all" or '
                    "indices"
                )
            finish(readings, self._settings)
        self._closed = True

    def _current_pass(self, call: Call, place: Place) -> Pass:
        latest = self._passes[-1] if self._passes else None
        if latest is not None and place.frame is self._frame:
            return latest
        self._frame = place.frame
        # Entered by another module: someone calls the parts of the model one by one.
        if latest is not None and not any(place.outer is module for module in latest.entered):
            latest.entered.append(place.outer)
            return latest
        given = first_input(place.frame)
        samples = call.samples
        if given is not None and samples != 1 and getattr(call.module, "batch_first", True):
            samples = len(given)
        image = bool(self.image_sizes) or (given is not None and given.dim() > 3)
        self._passes.append(Pass([place.outer], samples or call.shape[0], not image))
        return self._passes[-1]


def _is_within(layer: str, chosen: set[str]) -> bool:
    return any(layer == name or layer.startswith(f"{name}.") for name in chosen)


def _unused(layer: str, taken: Collection[str]) -> str:
    names = chain([layer], (f"{layer}#{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _nothing_seen(
    chosen: set[str] | None, skipped: Collection[str], unread: Collection[str]
) -> str:
    if skipped:
        return (
            f"`layers`: no attention in {', '.join(sorted(chosen or []))}; "
            f"there is some in {', '.join(dict.fromkeys(skipped))}"
        )
    near = (
        f" A softmax that no product of matrices follows, or along another axis than the last, is "
        f"in {', '.join(unread)}."
        if unread
        else ""
    )
    return (
        "`model`: no attention was seen. Either it was not called or has none (separable and linear"
        " attention have no map), or its attention is out of sight: a kernel that is no torch"
        " function (set the model to sdpa or eager), torch.jit, or another thread (DataParallel)."
        + near
    )
