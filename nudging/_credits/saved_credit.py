import xarray as xr

from nudging._credits.saving import CREDIT_PREFIX


def saved_credit(result: xr.Dataset) -> xr.Dataset:
    """Return the credit that is stored in a result, as a Dataset.

    Args:
        result: The result of a verb whose credit has a method `to_dataset`. It may have been saved
            and loaded.

    Returns:
        What that credit's `to_dataset` returned; pass it to `load_credit`.

    Raises:
        ValueError: If the result stores no credit.
        TypeError: If it is not a Dataset.

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
