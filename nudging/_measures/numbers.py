"""Per-sample numbers as a labelled Dataset."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from nudging._measures.batches import Credit, Observed
from nudging._replay.losses import loss_name
from resonance_toolkit import provenance

Array = NDArray[np.float64]
Parts = Sequence[Mapping[str, Tensor]]


def joined(parts: Parts) -> dict[str, Array]:
    """Numbers of all batches; the samples are the last axis."""
    return {
        name: torch.cat([part[name].double().cpu() for part in parts], -1).numpy()
        for name in parts[0]
    }


def norms(values: Mapping[str, Tensor]) -> Tensor:
    """Length of each sample's tensor, `(layer, sample)`."""
    parts = [_by_largest(value) for value in values.values()]
    # On the CPU: blocks may be on different devices.
    return torch.stack([(top[:, 0] * rows.norm(dim=1)).cpu() for rows, top in parts])


def normalised(value: Tensor, how: str) -> Tensor:
    """Each sample over its root mean square ("rms") or norm ("unit"), in double precision; what is
    zero stays zero."""
    rows, top = _by_largest(value)
    size = rows.norm(dim=1, keepdim=True)
    size = size / rows.shape[1] ** 0.5 if how == "rms" else size
    return (rows / torch.where(top > 0, size, 1.0)).reshape(value.shape)


def inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """Inner products of each sample's tensors, `(layer, sample)`."""
    pairs = zip(one.values(), other.values(), strict=True)
    return torch.stack([(a.double() * b.double()).flatten(1).sum(1).cpu() for a, b in pairs])


def _by_largest(value: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample over its largest entry, and that: tiny and huge numbers have no squares."""
    rows = value.double().flatten(1)
    top = rows.abs().amax(1, keepdim=True)
    return rows / torch.where(top > 0, top, 1.0), top


def standard_error(values: Array) -> Array:
    """Of the mean over the last axis, NaN for one sample."""
    count = values.shape[-1]
    if count < 2:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(values.std(-1, ddof=1) / np.sqrt(count))


def dataset(
    variables: Mapping[str, tuple[Any, Any, str]],
    coords: Mapping[str, tuple[Any, str]],
    attrs: Mapping[str, str | int | float],
) -> xr.Dataset:
    """Put names of the axes and long names where xarray wants them."""
    return xr.Dataset(
        {n: (dims, v, {"long_name": text}) for n, (dims, v, text) in variables.items()},
        coords={n: (n, v, {"long_name": text}) for n, (v, text) in coords.items()},
        attrs=dict(attrs),
    )


def layers(seen: Observed) -> tuple[list[str], str]:
    """The coordinate that all measures share."""
    return list(seen.state.blocks), "block, in the order in which they run"


def attributes(
    verb: str, model: nn.Module, credit: Credit | None, seen: Observed, /, **settings: Any
) -> dict[str, str | int | float]:
    """What made a result: the settings, the loss, the credit, and which passes were needed."""
    state = seen.state
    dtype = str(next(iter(state.hidden.values())).dtype).removeprefix("torch.")
    passes = f"full passes: {state.full}" if state.full else "what follows each block"
    about = {"loss": loss_name(state.loss), "dtype": dtype, "passes": passes}
    if credit is not None:
        about["credit"] = describe(credit)
    return provenance(verb, model, **about, **settings)


def describe(credit: Any) -> str:
    """A name for a credit that is the same in every process."""
    if dataclasses.is_dataclass(credit) and not isinstance(credit, type):
        pairs = [(f.name, getattr(credit, f.name)) for f in dataclasses.fields(credit) if f.repr]
        inside = ", ".join(f"{name}={_short(value)}" for name, value in pairs)
        return f"{type(credit).__name__}({inside})"
    if isinstance(settings := getattr(credit, "settings", None), Mapping):
        inside = ", ".join(f"{name}={_short(value)}" for name, value in sorted(settings.items()))
        return f"{type(credit).__name__}({inside})"
    return _short(credit)


def _short(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return (
        repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    )
