import xarray as xr


def with_cosines(trace: xr.Dataset) -> xr.Dataset:
    """Add the cosines that inner products and norms give, by layer and over all layers.

    A cosine is NaN where the losses share no parameter or a gradient is zero.
    """
    if "dot" in trace:
        parts = trace["dot"], trace["norm_main"] ** 2, trace["norm_aux"] ** 2
    elif "inner_product" in trace:
        square = trace["norm"] ** 2
        swapped = square.rename(objective="other_objective", other_objective="objective")
        parts = trace["inner_product"], square, swapped.transpose(*square.dims)
    else:
        return trace
    by_layer = _ratio(*parts)
    sums = [part.sum("layer", skipna=True, min_count=1) for part in parts]
    conflicts = (by_layer < 0).where(by_layer.notnull()).mean("layer")
    return trace.assign(
        cosine=by_layer.assign_attrs(long_name="cosine of the gradients"),
        cosine_total=_ratio(*sums).assign_attrs(long_name="cosine over all shared parameters"),
        conflict_fraction=conflicts.assign_attrs(
            long_name="share of layers whose gradients conflict"
        ),
    )


def _ratio(dot: xr.DataArray, square: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    # Rounding can leave 1 + 2e-16; a zero gradient has no direction.
    length: xr.DataArray = square**0.5 * other**0.5
    return (dot / length.where(length > 0)).clip(-1, 1)
