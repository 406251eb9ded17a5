"""What a part has to say about itself, before its pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xarray as xr

from resonance_toolkit._front.page.numbers import Number


@dataclass(frozen=True)
class Findings:
    """The words and numbers of a part.

    Args:
        lead: What came out, in a sentence or two.
        numbers: With what each is to be held against.
        meanings: How to read them, a paragraph each.
        results: Those to draw, in this order.
        surface: A plane for the surface that can be turned.
    """

    lead: str = ""
    numbers: Sequence[Number] = ()
    meanings: Sequence[str] = ()
    results: Sequence[xr.Dataset] = ()
    surface: xr.Dataset | None = None


def child_of(node: xr.DataTree, name: str) -> xr.Dataset | None:
    """Return a child's result, if there is such a child."""
    return result_of(node.children[name]) if name in node.children else None


def examination_of(node: xr.DataTree) -> xr.DataTree:
    """Return the tree that a part belongs to, which may be one of several runs in a larger one."""
    return node if node.parent is None else node.parent


def result_of(node: xr.DataTree) -> xr.Dataset:
    """Return what a node holds, with the coordinates of its dimensions.

    A tree keeps a coordinate that a node shares with its parent in the parent alone. What a parent
    has beyond that, such as the names of the parts, is none of the node's.

    Examples:
        >>> loss = xr.Dataset({"loss": ("layer", [1.0, 2.0])}, {"layer": ["stem", "head"]})
        >>> root = loss.assign_coords(part=["model"])
        >>> tree = xr.DataTree.from_dict({"/": root, "/inner": loss})
        >>> result_of(tree["inner"]).identical(loss)
        True
    """
    result = node.to_dataset(inherit=False)
    all_coordinates = node.to_dataset(inherit=True).coords
    inherited = {
        name: coordinate
        for name, coordinate in all_coordinates.items()
        if name not in result.coords
        and coordinate.dims
        and set(coordinate.dims) <= set(result.dims)
    }
    return result.assign_coords(inherited)
