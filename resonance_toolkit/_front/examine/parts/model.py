"""`/model`: what is examined, and what was understood about it."""

import math
from typing import Any

import torch
import xarray as xr

from resonance_toolkit import (
    call_model,
    count_samples,
    describe_tensors,
    device_of,
    devices_of,
    dtype_name,
    evaluating,
    find_layers,
    floating_dtype_of,
    preserving,
    preserving_rng,
    provenance,
    unwrap,
)
from resonance_toolkit._front.examine.budget import seconds_for
from resonance_toolkit._front.examine.parts.calls import write_call
from resonance_toolkit._front.examine.subject import Subject, output_shapes
from resonance_toolkit._front.examine.training import cut_pieces
from resonance_toolkit._front.examine.work import Work

_MEASURED_AT_ONCE = 64


def call(subject: Subject, sizes: dict[str, int]) -> str:
    """Say how to repeat loss and accuracy by hand."""
    settings = subject.settings
    grid = write_call(
        "landscape.grid",
        "model",
        "data",
        size=3,
        loss=settings.loss,
        samples=sizes["samples"],
        seed=settings.seed,
    )
    return f"{grid}.sel(alpha=0, beta=0)"


def measure(work: Work) -> None:
    """Measure the model as it was given."""
    work.measure("", lambda: _measure_model(work))


def _measure_model(work: Work) -> xr.Dataset:
    subject = work.subject
    model = subject.model
    n_samples = work.sizes["samples"]

    batches = subject.loss.count_only(subject.draw(n_samples))
    few = subject.first(work.sizes["batch_size"])
    inputs, _ = few
    with preserving(model), preserving_rng(devices_of(model)), evaluating(model):
        means = subject.loss.measure(model, cut_pieces(batches, _MEASURED_AT_ONCE))
        meaning = subject.describe_targets(few)
        n_classes = subject.loss.count_classes(model, few)
        with torch.no_grad():
            forward_seconds = seconds_for(lambda: call_model(model, inputs))
    flops = _count_flops(subject, inputs)

    layers: list[str] = work.store.facts["layers"]
    modules = {name: find_layers(model, name)[name] for name in layers}
    shapes = output_shapes(subject, inputs, modules)
    parameters = list(unwrap(model).parameters())

    def count_parameters(name: str) -> int:
        return sum(parameter.numel() for parameter in modules[name].parameters())

    by_layer = {
        "n_layer_parameters": (list(map(count_parameters, layers)), "parameters inside the layer"),
        "layer_kind": (
            [type(modules[name]).__name__ for name in layers],
            "class of the layer",
        ),
        "output_shape": (
            [shapes.get(name, "never called") for name in layers],
            "shape of what the layer returns for a batch",
        ),
    }
    scalars: dict[str, tuple[float, str, str]] = {
        "loss": (means.loss, "mean main loss", ""),
        "accuracy": (means.accuracy, "share of right predictions", ""),
        "n_parameters": (float(sum(p.numel() for p in parameters)), "parameters", ""),
        "n_trained_parameters": (
            float(sum(p.numel() for p in parameters if p.requires_grad)),
            "parameters that are trained",
            "",
        ),
        "forward_seconds": (forward_seconds, "forward pass of a batch", "s"),
        "forward_flops": (flops, "floating-point operations of a forward pass of a batch", ""),
        "batch_samples": (float(count_samples(few)), "samples in that batch", ""),
    }
    variables: dict[str, Any] = {
        name: ("layer", values, {"long_name": text}) for name, (values, text) in by_layer.items()
    }
    for name, (value, text, units) in scalars.items():
        attributes = {"long_name": text} | ({"units": units} if units else {})
        variables[name] = ((), value, attributes)

    dtype = floating_dtype_of(model)
    return xr.Dataset(
        variables,
        coords={"layer": ("layer", layers, {"long_name": "layer"})},
        attrs=provenance(
            "resonance.examine",
            model,
            n_samples=sum(count_samples(batch) for batch in batches),
            seed=subject.settings.seed,
            inputs=describe_tensors(inputs),
            targets=meaning,
            loss=subject.loss.name,
            n_classes=n_classes,
            blocks_reason=work.store.facts["layers_reason"],
            device=device_of(model).type,
            dtype="none" if dtype is None else dtype_name(dtype),
        ),
    )


def _count_flops(subject: Subject, inputs: Any) -> float:
    """Count the operations of a forward pass; NaN if torch's counter cannot follow it."""
    # Here, since it loads slowly.
    from torch.utils.flop_counter import FlopCounterMode

    model = subject.model
    try:
        with preserving(model), evaluating(model), torch.no_grad():
            # Without modules, on which it would set hooks.
            counter = FlopCounterMode(display=False)
            with counter:
                call_model(model, inputs)
    except Exception:  # it is no part of the model's contract
        return math.nan
    return float(counter.get_total_flops()) or math.nan
