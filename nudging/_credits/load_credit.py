from collections.abc import Callable
from typing import Any

import xarray as xr
from torch import Tensor

from nudging._credits.credit_bridge import CreditBridge
from nudging._credits.feedback_matrices import DirectFeedback
from nudging._credits.feedback import Feedback
from nudging._credits.state_bridge import StateBridge
from nudging._replay.state import State

KINDS: dict[str, Any] = {
    k.__name__: k for k in (DirectFeedback, Feedback, StateBridge, CreditBridge)
}


def load_credit(dataset: xr.Dataset) -> Callable[[State], dict[str, Tensor]]:
    """The credit whose `to_dataset()` this is; it gives the same credits, bit for bit.

    Args:
        dataset: From `to_dataset()`, or read from a file, such as the group of a result:
            `credit.to_dataset().to_netcdf(path, group="credit", mode="a", engine="h5netcdf")`.

    Raises:
        ValueError: If the dataset holds no credit.
        TypeError: If it is no dataset.

    Examples:
        >>> from nudging import direct_feedback
        >>> load_credit(direct_feedback(seed=3).to_dataset()).settings["seed"]
        3
    """
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(f"`dataset`: expected an xarray.Dataset, got {type(dataset).__name__}")
    kind = dataset.attrs.get("credit")
    if kind not in KINDS:
        hint = "; `nudging.saved_credit` takes it out of a result" if kind else ""
        known = ", ".join(KINDS)
        raise ValueError(f"`dataset`: expected a saved credit ({known}), got {kind!r}{hint}")
    credit: Callable[[State], dict[str, Tensor]] = KINDS[kind].from_dataset(dataset)
    return credit
