"""What a monitor has seen, as rows in memory and as lines of text for a file or a checkpoint.

Each part ("gradients", "branches", ...) has one row for each step at which it was measured. What
the rows of a part share, their layout, is written once. A record is these lines, in this order:

    {"resonance.Monitor": {...}}                           attributes of the whole
    {"part": ..., "layout": {...}}                         before the first row it is the layout of
    {"part": ..., "step": 100, "values": {"loss": [...]}}  a row of the latest layout
    {"part": ..., "reason": ...}                           why there is no row, or not every row

Each line has a checksum. The last one may be torn, and is left out then.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import from_checked_line, to_checked_line

MADE_BY = "resonance.Monitor"

Array = NDArray[np.float64]
Attributes = dict[str, str | int | float]

_STEP_NAME = "optimizer updates before"


@dataclass
class Series:
    """The rows of one layout: coordinates, variables and attributes are shared by all of them."""

    layout: dict[str, Any]
    steps: list[int] = field(default_factory=list)
    rows: list[dict[str, Array]] = field(default_factory=list)


class Record:
    """Rows by part, and for each part the first reason why one is missing."""

    def __init__(self) -> None:
        self._series: dict[str, list[Series]] = {}
        self._reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(len(series.rows) for parts in self._series.values() for series in parts)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why parts have no row, or not every row."""
        return self._reasons

    def has_rows(self, part: str) -> bool:
        """Tell whether there is a row of a part."""
        return part in self._series

    def add(self, part: str, step: int, row: xr.Dataset) -> list[str]:
        """Keep what was measured at a step, and return the lines that say so."""
        lines = []
        layout = _layout_of(row)
        if not self._has_layout(part, layout):
            lines.append(self._add_layout(part, layout))

        values = {
            str(name): np.asarray(variable.values, dtype=np.float64)
            for name, variable in row.data_vars.items()
        }
        series = self._series[part][-1]
        series.steps.append(step)
        series.rows.append(values)
        return [*lines, _row_line(part, step, values)]

    def add_reason(self, part: str, reason: str) -> list[str]:
        """Keep why a part has no row, unless there is a reason already."""
        if part in self._reasons:
            return []
        self._reasons[part] = reason
        return [to_checked_line({"part": part, "reason": reason})]

    def lines(self, attributes: Attributes) -> Iterator[str]:
        """Write the whole record."""
        yield to_checked_line({MADE_BY: attributes})
        for part, all_series in self._series.items():
            for series in all_series:
                yield to_checked_line({"part": part, "layout": series.layout})
                for step, values in zip(series.steps, series.rows, strict=True):
                    yield _row_line(part, step, values)
        for part, reason in self._reasons.items():
            yield to_checked_line({"part": part, "reason": reason})

    def read(self, lines: Sequence[bytes]) -> Attributes:
        """Add what lines hold, and return the attributes of the whole.

        Raises:
            KeyError, TypeError, ValueError: If a line is none of a record; the message has its
                number.
        """
        attributes: Attributes = {}
        for number, line in enumerate(lines, start=1):
            try:
                fields = from_checked_line(line)
                if number == 1:
                    attributes = fields[MADE_BY]
                else:
                    self._read_fields(fields)
            except (KeyError, TypeError, ValueError) as error:
                raise type(error)(f"line {number}: {error}") from None
        return attributes

    def to_tree(self, attributes: Attributes) -> xr.DataTree:
        """Label what was recorded: one node for each part, and at the root what all share."""
        reasons = {f"{part}_reason": reason for part, reason in self._reasons.items()}
        datasets = {"/": xr.Dataset(attrs={**attributes, **reasons})}
        for part, all_series in self._series.items():
            datasets[f"/{part}"] = _concatenate(
                [_to_dataset(part, series) for series in all_series]
            )
        return xr.DataTree.from_dict(datasets)

    def _has_layout(self, part: str, layout: dict[str, Any]) -> bool:
        if part not in self._series:
            return False
        # As text, in which NaN is NaN. Attributes such as the number of samples may change.
        latest = self._series[part][-1].layout
        return all(
            json.dumps(latest[name]) == json.dumps(layout[name]) for name in ("coords", "variables")
        )

    def _add_layout(self, part: str, layout: dict[str, Any]) -> str:
        self._series.setdefault(part, []).append(Series(layout))
        return to_checked_line({"part": part, "layout": layout})

    def _read_fields(self, fields: dict[str, Any]) -> None:
        part = fields["part"]
        if "layout" in fields:
            self._add_layout(part, fields["layout"])
        elif "reason" in fields:
            self.add_reason(part, fields["reason"])
        else:
            series = self._series[part][-1]
            values = {
                name: np.array(fields["values"][name], dtype=np.float64)
                for name in series.layout["variables"]
            }
            series.steps.append(int(fields["step"]))
            series.rows.append(values)


def _layout_of(row: xr.Dataset) -> dict[str, Any]:
    coordinates = {
        str(name): {
            "dims": list(coordinate.dims),
            "dtype": coordinate.dtype.str,
            "values": coordinate.values.tolist(),
            "attributes": _plain_attributes(coordinate.attrs),
        }
        for name, coordinate in row.coords.items()
        if name != "step"
    }

    variables = {
        str(name): {"dims": list(variable.dims), "attributes": _plain_attributes(variable.attrs)}
        for name, variable in row.data_vars.items()
    }
    attributes = _plain_attributes(row.attrs)
    return {"coords": coordinates, "variables": variables, "attributes": attributes}


def _plain_attributes(attributes: Mapping[Any, Any]) -> Attributes:
    return {
        str(name): value.item() if isinstance(value, np.generic) else value
        for name, value in attributes.items()
    }


def _row_line(part: str, step: int, values: Mapping[str, Array]) -> str:
    numbers = {name: array.tolist() for name, array in values.items()}
    return to_checked_line({"part": part, "step": step, "values": numbers})


def _to_dataset(part: str, series: Series) -> xr.Dataset:
    layout = series.layout
    steps = np.array(series.steps, dtype=np.int64)
    coords: dict[str, Any] = {"step": ("step", steps, {"long_name": _STEP_NAME})}
    for name, coordinate in layout["coords"].items():
        values = np.array(coordinate["values"], dtype=coordinate["dtype"])
        coords[name] = (coordinate["dims"], values, coordinate["attributes"])

    variables = {}
    for name, variable in layout["variables"].items():
        shape = [len(coords[dim][1]) for dim in variable["dims"]]
        values = np.array([row[name] for row in series.rows]).reshape(len(steps), *shape)
        variables[name] = (["step", *variable["dims"]], values, variable["attributes"])

    measured_by = layout["attributes"].get("made_by", "unknown")
    attributes = {
        **layout["attributes"],
        "made_by": MADE_BY,
        "part": part,
        "measured_by": measured_by,
    }
    return xr.Dataset(variables, coords, attributes)


def _concatenate(datasets: list[xr.Dataset]) -> xr.Dataset:
    """Put series one after another; what one of them lacks is NaN there."""
    if len(datasets) == 1:
        return datasets[0]
    return xr.concat(
        datasets,
        "step",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="override",
    )
