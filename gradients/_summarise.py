from numbers import Real

import xarray as xr

from gradients._checks import check_recorded

# Of the trace: what made it and from what. Its settings (every, level) are not the summary's.
_KEPT_ATTRIBUTES = ("toolkit_version", "torch_version", "model", "n_parameters")


def summarise(
    trace: xr.Dataset, variable: str = "cosine_total", *, margin: float = 0.1, share: float = 2 / 3
) -> xr.Dataset:
    """Summarise how two gradients agreed during training, as in the paper's table 5.

    The verdict is "synergy" if the mean cosine is at least `margin` and at least `share` of the
    steps have a positive one; "conflict" if the mean is at most `-margin` and at least `share` have
    a negative one; "incoherent" otherwise; "undefined" if no step has a cosine. The
    asymmetric-training paper does not state its rule; this one gives its three verdicts for its
    published means.

    Args:
        trace: With a dimension `step`, as made by `Trace`.
        variable: What to summarise: "cosine_total", or "cosine" for a row per layer.
        margin: Smallest absolute mean cosine that counts as synergy or conflict.
        share: Smallest share of steps that must have the sign of the mean.

    Returns:
        Dataset with `final`, `mean`, `min`, `max`: of the cosine; `conflict_share`: of the steps
        with a negative one; `n_steps`: the number of steps with a cosine; `verdict`; over the
        remaining dimensions. The rule is in the attributes.

    Raises:
        ValueError: If the trace has no such variable, or no step, or a setting is out of range.
        TypeError: If it is not a Dataset.

    Examples:
        >>> values = ("step", [0.1, -0.1, 0.3, 0.5])
        >>> trace = xr.Dataset({"cosine_total": values}, {"step": range(4)})
        >>> summary = summarise(trace)
        >>> summary["mean"].item(), summary["conflict_share"].item(), summary["verdict"].item()
        (0.2, 0.25, 'synergy')
    """
    check_recorded(trace)
    if variable not in trace or "step" not in trace[variable].dims:
        names = [str(name) for name, part in trace.data_vars.items() if "step" in part.dims]
        raise ValueError(
            f"`variable`: expected one over `step` ({', '.join(names) or 'there is none'}), got "
            f"{variable!r}"
        )
    _check_share("margin", margin)
    _check_share("share", share)

    # A step without a cosine (an overflow, nothing shared) counts neither way.
    cosine = trace[variable]
    is_defined = cosine.notnull()
    n_steps = is_defined.sum("step")
    mean = cosine.mean("step")
    conflict_share = (cosine < 0).where(is_defined).mean("step")
    synergy_share = (cosine > 0).where(is_defined).mean("step")

    is_synergy = (mean >= margin) & (synergy_share >= share)
    is_conflict = (mean <= -margin) & (conflict_share >= share)
    verdict = xr.where(is_synergy, "synergy", xr.where(is_conflict, "conflict", "incoherent"))
    verdict = xr.where(n_steps > 0, verdict, "undefined").astype(object)

    columns = {
        "final": (cosine.isel(step=-1, drop=True), "last cosine"),
        "mean": (mean, "mean cosine"),
        "min": (cosine.min("step"), "smallest cosine"),
        "max": (cosine.max("step"), "largest cosine"),
        "conflict_share": (conflict_share, "share of steps with a negative cosine"),
        "n_steps": (n_steps, "steps with a cosine"),
        "verdict": (verdict, "interaction of the gradients"),
    }
    variables = {
        name: values.drop_attrs().assign_attrs(long_name=text)
        for name, (values, text) in columns.items()
    }

    rule = (
        f"synergy: mean >= {margin:g} and at least {share:.3g} of the steps positive; "
        f"conflict: mean <= -{margin:g} and at least {share:.3g} negative; else incoherent"
    )
    attributes = {key: trace.attrs[key] for key in _KEPT_ATTRIBUTES if key in trace.attrs}
    attributes |= {"made_by": "gradients.summarise", "rule": rule}
    return xr.Dataset(variables, attrs=attributes)


def _check_share(argument: str, value: float) -> None:
    # Unlike the ground floor's share, this one may be 0: any step, any mean will do.
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ValueError(f"`{argument}`: expected a number from 0 to 1, got {value!r}")
