from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from markupsafe import Markup, escape

from resonance_toolkit._base.files import check_writable, write_atomically
from resonance_toolkit._base.showing import render_page
from resonance_toolkit._front.page.build_report import (
    is_examined,
    report_examined,
    report_results,
    report_runs,
)
from resonance_toolkit._front.page.numbers import write_number, write_seconds
from resonance_toolkit._front.page.sections.part import result_of
from resonance_toolkit._front.page.view import Report

_TEMPLATES = Path(__file__).parent / "templates"

Page = xr.DataTree | xr.Dataset | Mapping[str, xr.DataTree] | Mapping[str, xr.Dataset]


def page(tree: Page, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write an html report that shows what was measured, what it means, and how to repeat it.

    The report is one file. It needs no network and no other file, and can be read without scripts
    (which sort its tables and rotate its surface). It follows the reader's light or dark theme.

    Args:
        tree: What `examine` returned, or the result of any verb. To show several of these side by
            side, pass a mapping from names to them, or a DataTree with one child for each.
        path: Where to write the file. An existing file is replaced in one step; if anything fails,
            it stays as it is.
        title: Title of the page; by default that of the tree, or the class of the model.

    Returns:
        The path.

    Raises:
        TypeError: If `tree` is not a result.
        ValueError: If it is empty, or an examination is mixed with other results.
        OSError: If the file cannot be written.

    Examples:
        >>> import tempfile
        >>> norms = {"gradient_norm": ("layer", [1.0, 2.0])}
        >>> norms = xr.Dataset(norms, {"layer": ["stem", "head"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = page(norms, Path(folder, "norms.html"), title="Norms")
        ...     "<h1>Norms</h1>" in path.read_text(encoding="utf-8")
        True
    """
    if title is not None and not isinstance(title, str):
        raise TypeError(f"`title`: expected a string or None, got {type(title).__name__}")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"`path`: expected a path, got {type(path).__name__}")
    target = Path(path)
    check_writable("path", target)

    text = _render_report(_make_report(tree, title))
    write_atomically({target: lambda file: file.write_text(text, encoding="utf-8")})
    return target


def _make_report(tree: Any, title: str | None) -> Report:
    if isinstance(tree, xr.Dataset):
        _check_not_empty({"tree": tree})
        return report_results({str(tree.attrs.get("made_by", "result")): tree}, title)

    if isinstance(tree, xr.DataTree):
        if is_examined(tree):
            return report_examined(tree, title)
        return _report_several(dict(tree.children) or {}, tree, title)

    if isinstance(tree, Mapping):
        if not tree:
            raise ValueError("`tree`: expected at least one run or result, got an empty mapping")
        return _report_several({str(name): node for name, node in tree.items()}, None, title)

    raise TypeError(
        "`tree`: expected what resonance.examine returns, a result of a verb, or a mapping from "
        f"names to these, got {type(tree).__name__}"
    )


def _report_several(
    nodes: Mapping[str, Any], root: xr.DataTree | None, title: str | None
) -> Report:
    for name, node in nodes.items():
        if not isinstance(node, xr.DataTree | xr.Dataset):
            raise TypeError(
                f"`tree`: at {name!r}: expected a DataTree or a Dataset, got {type(node).__name__}"
            )

    examined = {
        name: node
        for name, node in nodes.items()
        if isinstance(node, xr.DataTree) and is_examined(node)
    }
    if examined and len(examined) == len(nodes):
        return report_runs(examined, title)
    if examined:
        other_names = ", ".join(name for name in nodes if name not in examined)
        raise ValueError(
            f"`tree`: expected runs of resonance.examine alone, or none; got others: {other_names}"
        )

    results = _results_in(nodes)
    if root is not None and root.dataset.data_vars:
        results = {
            str(root.attrs.get("made_by", "result")): result_of(root),
            **results,
        }
    _check_not_empty(results)
    tree_attributes = {} if root is None else root.attrs
    return report_results(results, title, tree_attributes=tree_attributes)


def _results_in(nodes: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    """Return the results of a tree by path, from the top down."""
    results = {}
    for name, node in nodes.items():
        if isinstance(node, xr.Dataset):
            results[name] = node
            continue
        for inner in node.subtree:
            place = "/".join(part for part in (name, inner.relative_to(node)) if part != ".")
            if inner.dataset.data_vars:
                results[place] = result_of(inner)
    return results


def _check_not_empty(results: Mapping[str, xr.Dataset]) -> None:
    if not any(result.data_vars for result in results.values()):
        raise ValueError("`tree`: expected at least one variable, got an empty result")


def _render_report(report: Report) -> str:
    script = render_page(_TEMPLATES / "scripts.js")
    return render_page(
        _TEMPLATES / "page.html",
        report=report,
        script=Markup(script),  # our own, with nothing of the user's in it
        script_digest=_digest_of_script(script),
        write_number=write_number,
        write_seconds=write_seconds,
        mark_code=_mark_code,
    )


def _mark_code(text: str) -> Markup:
    """Set names between backticks as code; all else stays text, whatever it holds."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)  # a backtick without its partner
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def _digest_of_script(script: str) -> str:
    """Return by what a browser knows the one script that may run in the page."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
