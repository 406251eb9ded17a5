import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from probes._features.alignment import (
    FEWEST_SAMPLES,
    Array,
    centre_sample_products,
    half_width,
    jackknife_error,
    kernel_alignment,
    unbiased_dependences,
)
from probes._features.read_features import reading_features
from probes._model.check_model import check_model
from probes._model.latest_features import Calls
from probes._model.pooling import POOL_NAMES, Pooling
from resonance_toolkit import (
    AtMost,
    check_choice,
    check_no_nan,
    check_share,
    check_whole,
    count_samples,
    device_of,
    find_blocks,
    find_layers,
    provenance,
    streaming_inputs,
    take,
    to_host,
    track,
)


def similarity(
    model: nn.Module,
    other: nn.Module | Mapping[str, Tensor],
    data: Any,
    *,
    layers: str | Sequence[str] | None = None,
    other_layers: str | Sequence[str] | None = None,
    pool: Pooling = "auto",
    calls: Calls | None = None,
    samples: int | None = AtMost(2000),
    batch_size: int = 128,
    level: float = 0.95,
    seed: int = 0,
) -> xr.Dataset:
    """Compare the features of two models, or of two states of one model, layer by layer.

    The measure is debiased linear CKA (centred kernel alignment): 1 for features that differ only
    by a rotation, a shift and a scale; 0, on average, for features that have nothing in common,
    however many there are. Numerator and denominator are averaged over batches before one is
    divided by the other (Nguyen et al. 2021). So samples of different batches are not compared, and
    need not be in memory together.

    Args:
        model: Any module, called in eval mode; left as it was found.
        other: Another one, which takes the same inputs; or a state dict of `model`.
        data: `(inputs, targets)`, a mapping with `labels`, inputs alone, or a source of these: a
            Dataset, a DataLoader, a list of batches. Targets are ignored. A DataLoader with
            `samples=None` is streamed: read once, one batch at a time.
        layers: Names or patterns of the layers of `model`; its repeated blocks or stages by
            default, as far as they have features.
        other_layers: Layers of `other`; by default the same, or the blocks of `other` if it has
            another architecture and you name no `layers`.
        pool: How a layer's output becomes features, as for `attach`; `"flatten"` compares all
            positions.
        calls: Which calls count if a layer runs several times in a pass, as for `attach`.
        samples: How many samples to draw, at most; None takes all.
        batch_size: How many samples are compared with each other; larger batches make the estimate
            less noisy.
        level: Confidence level of the interval.
        seed: Determines which samples are drawn.

    Returns:
        Dataset with `cka (layer, other_layer)`, and `cka_low` and `cka_high`, an interval from the
        jackknife over batches (NaN for a single batch). NaN where features do not vary.

    Raises:
        ValueError: If an argument does not fit, or no batch has four samples.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> result = similarity(model, copy.deepcopy(model), x, layers=["0", "2"])
        >>> result["cka"].sel(layer="0", other_layer="0").round(6).item()
        1.0
    """
    check_model(model)
    check_whole("batch_size", batch_size, at_least=FEWEST_SAMPLES)
    level = check_share("level", level)
    if not callable(pool):
        check_choice("pool", pool, POOL_NAMES, or_else="a callable")

    other_model = _as_model(model, other)
    modules = find_blocks(model) if layers is None else find_layers(model, layers)
    if other_layers is not None:
        other_modules = find_layers(other_model, other_layers, argument="other_layers")
    elif layers is not None:
        other_modules = find_layers(other_model, layers)
    else:
        other_modules = find_blocks(other_model)

    to_other = partial(tree_map_only, Tensor, lambda tensor: tensor.to(device_of(other_model)))

    moments = _Moments()
    with ExitStack() as stack:
        source: Iterator[Any]
        n_batches: int | None = None
        if samples is None and isinstance(data, DataLoader):
            # It may be larger than memory.
            streaming = streaming_inputs(data, seed, model=model, batch_size=batch_size)
            source = stack.enter_context(streaming)
        else:
            batches = take(
                data, samples, seed, model=model, batch_size=batch_size, needs_targets=False
            )
            source = (inputs for inputs, _ in batches)
            n_batches = len(batches)

        sample, large_batches = _leave_out_small(source)
        reading: dict[str, Any] = {"pool": pool, "calls": calls}
        read = stack.enter_context(reading_features(model, modules, sample=sample, **reading))
        try:
            reading_other = reading_features(
                other_model, other_modules, sample=to_other(sample), **reading
            )
            read_other = stack.enter_context(reading_other)
        except ValueError as error:
            raise ValueError(f"`other`: cannot be read beside `model`: {error}") from error

        for inputs in track(large_batches, "similarity", unit="batch", total=n_batches):
            features = read(inputs)
            other_features = read_other(to_other(inputs))
            moments.add(inputs, features, other_features)

    n_samples = moments.n_samples
    weights = np.array(n_samples) / sum(n_samples)
    arrays = np.array(moments.crossed), np.array(moments.first), np.array(moments.second), weights
    cka = kernel_alignment(*arrays)
    margin = half_width(len(weights), level) * jackknife_error(*arrays)

    names = {
        "cka": (cka, "debiased linear CKA"),
        "cka_low": (cka - margin, "lower end of its interval"),
        "cka_high": (cka + margin, "upper end of its interval"),
    }
    dims = "layer", "other_layer"
    return xr.Dataset(
        {name: (dims, values, {"long_name": text}) for name, (values, text) in names.items()},
        coords={
            "layer": ("layer", list(features), {"long_name": "layer"}),
            "other_layer": (
                "other_layer",
                list(other_features),
                {"long_name": "layer of the other model"},
            ),
        },
        attrs=provenance(
            "probes.similarity",
            model,
            other=type(other_model).__name__,
            pool=pool if isinstance(pool, str) else "given",
            n_samples=sum(n_samples),
            n_batches=len(n_samples),
            batch_size=batch_size,
            level=level,
            seed=seed,
        ),
    )


@dataclass
class _Moments:
    """Dependences of features, batch by batch.

    Attributes:
        crossed: Of each layer of one side on each of the other, `(layer, other_layer)`.
        first, second: Of each layer of a side on itself, `(layer,)`.
        n_samples: In each batch.
    """

    crossed: list[Array] = field(default_factory=list)
    first: list[Array] = field(default_factory=list)
    second: list[Array] = field(default_factory=list)
    n_samples: list[int] = field(default_factory=list)

    def add(
        self, inputs: Any, features: dict[str, Tensor], other_features: dict[str, Tensor]
    ) -> None:
        """Take in the features of a batch.

        Raises:
            ValueError: If some are no finite numbers.
        """
        n = count_samples(inputs)
        first = centre_sample_products(list(features.values()))
        second = centre_sample_products(list(other_features.values())).to(first)

        # An accelerator hands them over together, and is waited for once a batch.
        pairs_of_sides = (first, second), (first, first), (second, second)
        on_host = to_host([unbiased_dependences(a, b, n) for a, b in pairs_of_sides])
        crossed, within_first, within_second = (part.double().numpy() for part in on_host)

        if not np.isfinite([within_first.sum(), within_second.sum()]).all():
            check_no_nan([(inputs, None)])
            raise ValueError(
                "`layers`: expected features that are finite numbers, got NaN or infinity in "
                f"batch {len(self.n_samples)}"
            )

        self.crossed.append(crossed)
        self.first.append(np.diag(within_first))
        self.second.append(np.diag(within_second))
        self.n_samples.append(n)


def _leave_out_small(source: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """The first batch with samples enough for the estimator, and all of them, itself included.

    Raises:
        ValueError: If there is none.
    """
    sizes = []
    for inputs in source:
        sizes.append(count_samples(inputs))
        if sizes[-1] >= FEWEST_SAMPLES:
            later_batches = (batch for batch in source if count_samples(batch) >= FEWEST_SAMPLES)
            return inputs, chain([inputs], later_batches)

    raise ValueError(
        f"`data`: expected a batch of at least {FEWEST_SAMPLES} samples, got batches of at most "
        f"{max(sizes, default=0)}"
    )


def _as_model(model: nn.Module, other: nn.Module | Mapping[str, Tensor]) -> nn.Module:
    """The other model; of a state dict, a copy of the model in that state."""
    if isinstance(other, nn.Module):
        check_model(other)
        return other

    if not isinstance(other, Mapping):
        raise TypeError(f"`other`: expected a module or a state dict, got {type(other).__name__}")

    other_model = copy.deepcopy(model)
    try:
        other_model.load_state_dict(other)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`other`: is not a state dict of this model: {reason}") from error
    return other_model
