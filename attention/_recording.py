from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, count
from types import FrameType

import torch
import xarray as xr
from torch import Tensor, nn

from attention._assemble import assemble
from attention._call import Call
from attention._layout import Layout, find_layout
from attention._locate import Place, first_input
from attention._read import Reading, Settings, finish, read
from resonance import provenance


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
        self._passes: list[Pass] = []
        self._frame: FrameType | None = None
        self._errors: dict[str, Tensor] = {}
        self.skipped: list[str] = []
        self.image_sizes: dict[tuple[int, int], None] = {}

    @torch.no_grad()
    def receive(self, call: Call, place: Place) -> None:
        """Take in one attention call, while it runs."""
        if self._chosen is not None and not _is_within(call.layer, self._chosen):
            self.skipped.append(call.layer)
            return
        current = self._current_pass(call, place)
        n_groups, _, n_queries, n_keys = call.shape
        if n_groups % current.samples:
            raise ValueError(
                f"layer {call.layer!r} attends in {n_groups} groups, no multiple of the "
                f"{current.samples} samples: expected inputs with the samples first"
            )
        name = _unused(call.layer, current.readings)
        layout = Layout(0, None, None)
        if call.kind != "channel":
            layout = find_layout(
                n_queries,
                n_keys,
                prefix=0 if n_groups != current.samples else self._settings.prefix,
                image_sizes=None if current.sequence else list(self.image_sizes),
            )
        check = name not in self._errors
        with torch.autocast(call.device.type, enabled=False):
            reading, error = read(call, layout, current.samples, self._settings, check=check)
        if error is not None:
            self._errors[name] = error / call.tolerance
        current.readings[name] = reading

    def close(self) -> None:
        """Finish what waits, and let go of what the forward pass held."""
        self._frame = None
        with torch.no_grad():
            for one in self._passes:
                finish(list(one.readings.values()), self._settings)
        if not self._passes:
            raise ValueError(_nothing(self._chosen, self.skipped))
        for name, error in self._errors.items():
            if not error.item() <= 1:
                raise RuntimeError(
                    f"layer {name!r}: the attention read does not reproduce the layer's output "
                    f"({error.item():.3g} times what rounding explains), so it is not returned"
                )

    def dataset(self) -> xr.Dataset:
        """Lay out what was seen: forward passes follow one another along `sample`.

        Returns:
            See `attention.capture`; there is no `prediction`, which the caller has.
        """
        settings = self._settings
        attributes = provenance(
            "attention.capture",
            self._model,
            queries=settings.queries,
            keys=settings.keys,
            threshold=settings.threshold,
            mass=settings.mass,
        )
        return assemble([one.readings for one in self._passes], settings, attributes)

    def _current_pass(self, call: Call, place: Place) -> Pass:
        latest = self._passes[-1] if self._passes else None
        if latest is not None and place.frame is self._frame:
            return latest
        self._frame = place.frame
        # Entered anew by another module: someone calls the parts of a model one by one.
        if latest is not None and place.outer not in latest.entered:
            latest.entered.append(place.outer)
            return latest
        given = first_input(place.frame)
        image = bool(self.image_sizes) or (given is not None and given.dim() > 3)
        samples = call.samples
        if given is not None and not (samples == 1 or _is_sequence_first(place.module)):
            samples = len(given)
        self._passes.append(Pass([place.outer], samples or call.shape[0], not image))
        return self._passes[-1]


def _is_within(layer: str, chosen: set[str]) -> bool:
    return any(layer == name or layer.startswith(f"{name}.") for name in chosen)


def _unused(layer: str, taken: Collection[str]) -> str:
    names = chain([layer], (f"{layer}#{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _is_sequence_first(module: nn.Module) -> bool:
    return getattr(module, "batch_first", True) is False


def _nothing(chosen: set[str] | None, skipped: list[str]) -> str:
    if skipped:
        return (
            f"`layers`: no attention in {', '.join(sorted(chosen or []))}; "
            f"there is some in {', '.join(dict.fromkeys(skipped))}"
        )
    return (
        "`model`: no attention was seen. Either the model has none or was not called, or it is out "
        "of sight: flex_attention or another kernel outside torch (set the model to sdpa or eager),"
        " torch.jit, another thread (DataParallel), or attention without a softmax over the keys"
    )
