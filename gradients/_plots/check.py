"""A refusal of traces that nothing was recorded in."""

import xarray as xr


def check_recorded(trace: xr.Dataset) -> None:
    """Refuse what is no Dataset, or has no step.

    Raises:
        TypeError: If a `Trace` was given instead of its Dataset, or anything else.
        ValueError: If no step was recorded.
    """
    if not isinstance(trace, xr.Dataset):
        hint = "; give its to_dataset()" if hasattr(trace, "to_dataset") else ""
        raise TypeError(f"`trace`: expected a Dataset, got {type(trace).__name__}{hint}")
    if trace.sizes.get("step") == 0:
        raise ValueError(
            "`trace`: expected at least one recorded step, got none; train with "
            "trace.backward(main, auxiliary), the last one of an update with update=True (or with "
            "trace.join, and trace.advance() after each update), before trace.to_dataset()"
        )
