"""All layers side by side: what every part says about each attachment point.

Parts name layers differently: attention modules and owners of parameters lie inside of the blocks
to which branches are attached. A row is an attachment point with all that is inside of it; cosines
of gradients are pooled exactly, all else is averaged.
"""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from resonance_toolkit import gradients
from resonance_toolkit._front.page.drawings.nudging import by_rule
from resonance_toolkit._front.page.sections.part import result_of
from resonance_toolkit._front.page.view import Column, Table

Values = dict[str, float]


def make_layer_table(tree: xr.DataTree) -> Table | None:
    """Return the table; None if no part has more than a name to say."""
    points = _attachment_points(tree)
    if not points:
        return None

    columns: list[tuple[Column, Values]] = [
        *_response_columns(tree, points),
        *_gradient_columns(tree, points),
        *_nudging_columns(tree),
        *_attention_columns(tree, points),
        *_curvature_columns(tree, points),
    ]
    columns = [(column, values) for column, values in columns if _has_any(values, points)]
    words = _model_columns(tree, points)
    if not columns:
        return None

    rows: list[list[str | float]] = []
    for point in points:
        row: list[str | float] = [point]
        row += [texts[point] for _, texts in words]
        row += [values.get(point, math.nan) for _, values in columns]
        rows.append(row)

    header = [Column("layer", is_text=True), *(column for column, _ in words)]
    header += [column for column, _ in columns]
    return Table(header, rows)


def _has_any(values: Values, points: list[str]) -> bool:
    return any(not math.isnan(values.get(point, math.nan)) for point in points)


def _attachment_points(tree: xr.DataTree) -> list[str]:
    for part, name in (("model", "layer"), ("response", "point"), ("nudging", "layer")):
        if part in tree.children and name in tree.children[part].coords:
            return [str(point) for point in tree.children[part].coords[name].values]
    return []


def _model_columns(tree: xr.DataTree, points: list[str]) -> list[tuple[Column, dict[str, str]]]:
    if "model" not in tree.children:
        return []

    result = result_of(tree.children["model"])

    return [
        (
            Column(title, is_text=True),
            dict(zip(points, map(str, result[name].values), strict=True)),
        )
        for name, title in (("layer_kind", "kind"), ("output_shape", "output"))
        if name in result and result[name].dims == ("layer",)
    ]


def _response_columns(tree: xr.DataTree, points: list[str]) -> list[tuple[Column, Values]]:
    if "response" not in tree.children:
        return []

    result = result_of(tree.children["response"])
    columns = []
    if "cosine" in result:
        other_dims = [dim for dim in result["cosine"].dims if dim != "layer"]
        cosines = _average_inside(result["cosine"].mean(other_dims), points)
        note = (
            "of both gradients, mean over seeds, updates and the layers inside; 0 if they are "
            "unrelated"
        )
        columns.append((Column("cosine, training", note), cosines))

    for name, title in (("listening_accuracy", "readable"), ("listening_loss", "listening loss")):
        if name in result and bool(result[name].notnull().any()):
            what = "loss" if name.endswith("loss") else "accuracy"
            note = f"held-out {what} of a listening head after training, mean over seeds"
            for arm in map(str, result["arm"].values):
                values = result[name].sel(arm=arm).mean("seed")
                named = dict(zip(map(str, values["point"].values), values.values, strict=True))
                columns.append((Column(f"{title}, {arm}", note), named))

            break

    return columns


def _gradient_columns(tree: xr.DataTree, points: list[str]) -> list[tuple[Column, Values]]:
    if "gradients" not in tree.children:
        return []

    result = result_of(tree.children["gradients"])
    if "layer" not in result.dims or "cosine" not in result:
        return []

    layers = [str(layer) for layer in result["layer"].values]
    groups = {p: p for p in points if any(_is_inside(layer, p) for layer in layers)}
    if groups and {"dot", "norm_main", "norm_aux"} <= set(result.data_vars):
        columns_of_pair = result[["dot", "norm_main", "norm_aux", "cosine"]]
        cosine = gradients.regroup(columns_of_pair, groups)["cosine"]
        other_dims = [dim for dim in cosine.dims if dim != "layer"]
        pooled = cosine.mean(other_dims) if other_dims else cosine
        values = dict(zip(map(str, pooled["layer"].values), pooled.values, strict=True))
    else:
        other_dims = [dim for dim in result["cosine"].dims if dim != "layer"]
        values = _average_inside(result["cosine"].mean(other_dims), points)

    note = "of both gradients at the given weights, over all parameters inside"
    return [(Column("cosine, now", note), values)]


def _nudging_columns(tree: xr.DataTree) -> list[tuple[Column, Values]]:
    if "nudging" not in tree.children:
        return []

    result = by_rule(result_of(tree.children["nudging"]))
    if "loss_change" not in result or "layer" not in result.dims:
        return []

    rules = [str(name) for name in result["rule"].values] if "rule" in result.dims else [None]
    columns = []

    for rule in rules:
        change = result["loss_change"] if rule is None else result["loss_change"].sel(rule=rule)
        other_dims = [dim for dim in change.dims if dim != "layer"]
        values = change.mean(other_dims) if other_dims else change
        named = dict(zip(map(str, values["layer"].values), values.values, strict=True))
        note = "change of the main loss by a small step against this credit; below 0 it helps"
        columns.append((Column(f"nudge, {rule}" if rule else "nudge", note), named))

    return columns


def _attention_columns(tree: xr.DataTree, points: list[str]) -> list[tuple[Column, Values]]:
    if "attention" not in tree.children:
        return []

    result = result_of(tree.children["attention"])
    if "normalised_entropy" not in result or "layer" not in result.dims:
        return []

    entropy = result["normalised_entropy"]
    other_dims = [dim for dim in entropy.dims if dim != "layer"]
    note = "relative to uniform attention, which has 1"

    return [
        (Column("attention entropy", note), _average_inside(entropy.mean(other_dims), points)),
    ]


def _curvature_columns(tree: xr.DataTree, points: list[str]) -> list[tuple[Column, Values]]:
    if "curvature" not in tree.children:
        return []

    result = result_of(tree.children["curvature"])
    if "layer" not in result.dims or "largest" not in result:
        return []

    other_dims = [dim for dim in result["largest"].dims if dim != "layer"]
    note = "largest eigenvalue of the layer's block of the Hessian"
    return [(Column("curvature", note), _average_inside(result["largest"].max(other_dims), points))]


def _average_inside(values: xr.DataArray, points: list[str]) -> Values:
    """Average values of layers over each attachment point and all that is inside of it."""
    layers = [str(layer) for layer in values["layer"].values]
    averages = {}

    for point in points:
        values_inside = values.values[[_is_inside(layer, point) for layer in layers]].astype(float)
        values_inside = values_inside[np.isfinite(values_inside)]
        averages[point] = float(values_inside.mean()) if values_inside.size else math.nan

    return averages


def _is_inside(layer: str, point: str) -> bool:
    return layer == point or layer.startswith(f"{point}.")
