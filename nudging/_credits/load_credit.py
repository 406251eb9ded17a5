from collections.abc import Callable
from typing import Any

import xarray as xr
from torch import Tensor

from nudging._credits.credit_bridge import CreditBridge
from nudging._credits.feedback_matrices import DirectFeedback, Feedback
from nudging._credits.state_bridge import StateBridge
from nudging._replay.state import State

_CLASSES: dict[str, Any] = {
    cls.__name__: cls for cls in (DirectFeedback, Feedback, StateBridge, CreditBridge)
}


def load_credit(dataset: xr.Dataset) -> Callable[[State], dict[str, Tensor]]:
    """Restore a credit from its `to_dataset()`; it gives the same credits, bit for bit.

    Args:
        dataset: From `to_dataset()` or `saved_credit`, or read from a file that was written by
            `credit.to_dataset().to_netcdf(path, group="credit", mode="a", engine="h5netcdf")`.

    Raises:
        ValueError: If the dataset holds no credit, or a damaged one.
        TypeError: If it is not a Dataset.

    Examples:
        >>> from nudging import direct_feedback
        >>> load_credit(direct_feedback(seed=3).to_dataset())
        DirectFeedback(seed=3, scale=None, reuse_last=True)
    """
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(f"`dataset`: expected an xarray.Dataset, got {type(dataset).__name__}")

    kind = dataset.attrs.get("credit")
    if not isinstance(kind, str) or kind not in _CLASSES:
        cure = "; `nudging.saved_credit` takes it out of a result" if isinstance(kind, str) else ""
        expected = ", ".join(_CLASSES)
        raise ValueError(f"`dataset`: expected a saved credit ({expected}), got {kind!r}{cure}")

    try:
        credit: Callable[[State], dict[str, Tensor]] = _CLASSES[kind].from_dataset(dataset)
    except Exception as error:  # whatever a file that someone else made holds instead
        raise ValueError(f"`dataset`: holds no complete {kind}: {error}") from error
    return credit
