"""`resonance show`: any saved result as text and as a page or picture."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from h5py import is_hdf5

import resonance_toolkit
from resonance_toolkit import check_writable, text_table, write_atomically
from resonance_toolkit._front.command.mistake import Mistake, first_line

_PICTURES = {".png", ".pdf", ".svg"}
_PAGES = {".html", ".htm"}

# Variables that are listed of a result with many.
_MOST_VARIABLES = 30


def run_show(arguments: argparse.Namespace) -> int:
    """Print what results hold, and draw them."""
    paths: list[Path] = arguments.results
    output = arguments.output or paths[0].with_suffix(".html")
    _check_output(output, paths)

    results = {_label_result(path, paths): _open_result(path) for path in paths}
    for label, result in results.items():
        if len(results) > 1:
            print(f"{label}:")
        print(describe(result))

    _draw_results(results, output)
    print(f"{'picture' if output.suffix in _PICTURES else 'page'}: {output}")
    return 0


def describe(result: xr.Dataset | xr.DataTree) -> str:
    """Say what a result holds, for a terminal."""
    attributes = result.attrs
    made_by = attributes.get("made_by", "a netCDF file without `made_by`")
    of_model = f" of {attributes['model']}" if "model" in attributes else ""
    version = attributes.get("toolkit_version")
    lines = [f"{made_by}{of_model}{f', toolkit {version}' if version else ''}"]

    if "verdict_sentence" in attributes:
        lines.append(str(attributes["verdict_sentence"]))
    if made_by == "resonance.Monitor":
        lines += [f"{key}: {value}" for key, value in attributes.items() if _is_reason(key)]
    if "part" in result.dims and "status" in result:
        lines.append(_describe_parts(result))
        return "\n".join(lines)

    nodes = result.subtree if isinstance(result, xr.DataTree) else [result]
    for node in nodes:
        if isinstance(node, xr.DataTree) and node.parent is not None:
            lines.append(node.path)
        lines.append(_describe_variables(node))
    return "\n".join(line for line in lines if line)


def _is_reason(name: Any) -> bool:
    return str(name).endswith("_reason")


def _describe_parts(result: Any) -> str:
    rows = [("part", "status", "seconds", "reason")]
    for part in result["part"].values.tolist():
        # What is of the whole, such as the seconds of the preparation, is of no part.
        row = {
            name: variable.sel(part=part).item()
            for name, variable in result.data_vars.items()
            if variable.dims == ("part",)
        }
        seconds = row.get("seconds", float("nan"))
        rows.append(
            (
                str(part),
                str(row["status"]),
                "" if np.isnan(seconds) else f"{seconds:.1f}",
                str(row.get("reason", "")),
            )
        )
    return text_table(rows)


def _describe_variables(result: Any) -> str:
    if not result.data_vars:
        return ""

    rows = [("variable", "axes", "from", "to", "")]
    for name in list(result.data_vars)[:_MOST_VARIABLES]:
        variable = result[name]
        axes = " x ".join(f"{dim} {size}" for dim, size in variable.sizes.items()) or "-"
        smallest, largest = _describe_range(variable)
        meaning = str(variable.attrs.get("long_name", ""))
        units = f" [{variable.attrs['units']}]" if "units" in variable.attrs else ""
        rows.append((str(name), axes, smallest, largest, f"{meaning}{units}"))

    n_left_out = len(result.data_vars) - _MOST_VARIABLES
    last_line = f"\nand {n_left_out} more" if n_left_out > 0 else ""
    return text_table(rows) + last_line


def _describe_range(variable: xr.DataArray) -> tuple[str, str]:
    if variable.dtype.kind not in "biuf" or not variable.size:
        return "", ""
    values = variable.values[np.isfinite(variable.values.astype(float))]
    return (f"{values.min():.4g}", f"{values.max():.4g}") if values.size else ("nan", "nan")


def _open_result(path: Path) -> xr.Dataset | xr.DataTree:
    if path.is_dir():
        raise Mistake(f"RESULT: {path} is a folder; expected a file, such as {path / 'result.nc'}")
    if not path.is_file():
        raise Mistake(f"RESULT: no file {path}")
    if not is_hdf5(path):
        raise Mistake(f"RESULT: {path} is not a result; expected what to_netcdf has written")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as file:
            tree = file.load()
    except Exception as error:  # whatever a damaged or foreign file makes HDF5 say
        raise Mistake(f"RESULT: {path} is not a saved result: {first_line(error)}") from error

    if tree.children:
        return tree
    return tree.to_dataset()


def _check_output(output: Path, results: list[Path]) -> None:
    if output.suffix not in _PICTURES | _PAGES:
        raise Mistake(f"--output: expected .html, .png, .pdf or .svg, got {output.name!r}")
    if output.suffix in _PICTURES and len(results) > 1:
        raise Mistake("--output: several results need a page, an .html")
    if output.resolve() in {path.resolve() for path in results}:
        raise Mistake(f"--output: {output} is the result itself")
    check_writable("output", output)


def _draw_results(results: dict[str, Any], output: Path) -> None:
    (first_result, *more_results) = results.values()
    if output.suffix in _PICTURES:
        _draw_picture(first_result, output)
    else:
        resonance_toolkit.page(results if more_results else first_result, output)


def _draw_picture(result: Any, output: Path) -> None:
    if isinstance(result, xr.DataTree):
        raise Mistake("--output: a result of several parts needs a page, an .html")

    # Here, since a page needs no figure of matplotlib's own.
    from resonance_toolkit._front.page.draw import draw

    figure = draw(result)
    if figure is None:
        raise Mistake("RESULT: it has nothing to draw; --output with .html has its numbers")
    form = output.suffix.removeprefix(".")
    write_atomically({output: lambda path: figure.savefig(path, format=form, dpi=150)})


def _label_result(path: Path, paths: list[Path]) -> str:
    """Name a result by its file, or by its folder where all files are called alike."""
    names = {each_path.name for each_path in paths}
    if len(names) == len(paths):
        return path.stem
    return f"{path.resolve().parent.name}/{path.stem}"
