from collections.abc import Callable, Sequence
from typing import Any, Literal

import xarray as xr
from numpy.typing import ArrayLike
from torch import Tensor, nn

from probes._exit_analysis.leaving import DEFAULT_THRESHOLDS, check_thresholds
from probes._exit_analysis.record import record_exits
from probes._exit_analysis.reliability import exit_reliability
from probes._exit_analysis.route import route_exits
from probes._exit_training.losses import Exits
from probes._exit_training.resolve_heads import NormOption
from resonance_toolkit import check_whole, provenance


def exits(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str] | None = None,
    *,
    thresholds: ArrayLike = DEFAULT_THRESHOLDS,
    head: Literal["model"] | Callable[[Tensor], Tensor] | Exits = "model",
    norm: NormOption = "auto",
    depths: Sequence[float] | None = None,
    bins: int = 15,
    samples: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Measure in one pass over data what leaving a model early would cost and save.

    This calls `record_exits`, then `route_exits` and `exit_reliability` on that record, and returns
    one Dataset. For `exit_map` and `calibrate_exits` you need the record itself, so call
    `record_exits` for these.

    Args:
        model: A classifier or a language model, as for `attach_exits`; run in eval mode.
        data: Pairs (inputs, targets), or mappings with `labels`, in any form that `resonance.take`
            accepts: `(x, y)` tensors, a Dataset, a DataLoader, a list of batches. Targets are the
            right class for each position of the logits, `(sample,)` or, already shifted, `(sample,
            token)`; -100 does not count. Batches of texts may differ in length.
        layers: Names or patterns in forward order, the model's last layer last. None takes those of
            the `Exits` in `head`, or else the model's repeated blocks (in an encoder-decoder, the
            decoder's). The attribute `layers_reason` says why; see `resonance.find_blocks`.
        thresholds: A token leaves if its confidence is at least the threshold; shape
            `(threshold,)`.
        head: `"model"`, a callable from a layer's output to logits, or the `Exits` that the model
            was trained with.
        norm: `"auto"`: what the model itself has between its last layer and its head. None: only
            pooling. Or a callable that replaces it. `Exits` bring their own.
        depths: How far through the model each layer is, as a share; 1 for the last. If not given,
            numbered layers (`blocks.0`, ...) are spread evenly over all layers so numbered, others
            over the layers listed.
        bins: How many bins of the reliability curve cover confidences from 0 to 1.
        samples: How many samples are drawn; None takes all.
        batch_size: How many samples run together; if not given, as many as the logits' memory
            allows.
        seed: Determines which samples are drawn.

    Returns:
        Dataset with all variables of `route_exits` and `exit_reliability`.

    Raises:
        ValueError: If an argument does not fit; before the pass where that can be known.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Linear(4, 3))
        >>> data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> analysis = exits(model, data, ["0", "1"])
        >>> analysis["compute"].sel(threshold=0, measure="max softmax", exit="0").item()
        0.5
    """
    # Before the pass, which may take long, though the verbs below check them again.
    check_thresholds("thresholds", thresholds)
    check_whole("bins", bins)

    record = record_exits(
        model,
        data,
        layers,
        head=head,
        norm=norm,
        depths=depths,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
    )

    routes = route_exits(record, thresholds=thresholds)
    reliability = exit_reliability(record, bins=bins)
    attributes = routes.attrs | reliability.attrs | provenance("probes.exits", model)
    return routes.merge(reliability).assign_attrs(attributes)
