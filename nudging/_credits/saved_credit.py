import xarray as xr

from nudging._credits.saving import CREDIT_PREFIX


def saved_credit(result: xr.Dataset) -> xr.Dataset:
    """Take out of a result what its credit was saved as.

    Args:
        result: Of a verb that was given a credit with `to_dataset`, fresh or from a file.

    Returns:
        Dataset as that credit's `to_dataset` made it, for its `from_dataset`.

    Raises:
        ValueError: If there is none in it.
        TypeError: If it is no dataset.

    Examples:
        >>> import nudging, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        >>> data = torch.eye(2), torch.tensor([0, 1])
        >>> result = nudging.nudge(model, data, nudging.direct_feedback(seed=3), "0", samples=2)
        >>> dict(saved_credit(result)["0"].sizes)
        {'0.axis0': 3, '0.axis1': 2}
    """
    if not isinstance(result, xr.Dataset):
        raise TypeError(f"`result`: expected an xarray.Dataset, got {type(result).__name__}")

    names = [name for name in result.variables if str(name).startswith(CREDIT_PREFIX)]
    if not names:
        raise ValueError("`result`: expected one with a saved credit, got none in it")

    # Selecting variables takes coordinates of the result along that they do not use.
    other_coordinates = [name for name in result.coords if name not in names]
    saved = result[names].drop_vars(other_coordinates, errors="ignore")

    saved = saved.rename(
        {name: str(name).removeprefix(CREDIT_PREFIX) for name in {*saved.variables, *saved.dims}}
    )
    saved.attrs = {
        name.removeprefix(CREDIT_PREFIX): value
        for name, value in result.attrs.items()
        if name.startswith(CREDIT_PREFIX)
    }
    return saved
