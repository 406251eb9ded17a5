"""From results to the report that the template shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.about import INTRODUCTION, WORDS, write_setup
from resonance_toolkit._front.page.drawings.choose import draw_all
from resonance_toolkit._front.page.layer_table import make_layer_table
from resonance_toolkit._front.page.numbers import (
    as_number,
    value_of,
    write_number,
    write_seconds,
)
from resonance_toolkit._front.page.sections import (
    anything,
    attention,
    curvature,
    gradients,
    landscape,
    model,
    nudging,
    response,
)
from resonance_toolkit._front.page.sections.part import Findings, result_of
from resonance_toolkit._front.page.svg import to_svg
from resonance_toolkit._front.page.view import (
    Column,
    PartRow,
    Picture,
    Report,
    Run,
    Section,
    Table,
    Verdict,
)

# Parts in the order of a tree: title, the question it answers, and who describes it.
_PARTS: dict[str, tuple[str, str, Callable[[xr.DataTree], Findings]]] = {
    "model": ("Model", "What was examined?", model.describe),
    "response": (
        "Response",
        "Does training with branches end up better than without?",
        response.describe,
    ),
    "gradients": (
        "Gradients",
        "Do both losses ask for the same step, at the given weights?",
        gradients.describe,
    ),
    "landscape": (
        "Landscape",
        "What does the loss look like around the weights?",
        landscape.describe,
    ),
    "curvature": (
        "Curvature",
        "How sharply does the loss curve, over all directions?",
        curvature.describe,
    ),
    "attention": ("Attention", "Where does the model look?", attention.describe),
    "nudging": (
        "Nudging",
        "Would the branches' signal by itself help each block?",
        nudging.describe,
    ),
}

# What a description raises where a result lacks something that its verb always gives.
_LACKING = (ValueError, KeyError, TypeError, IndexError, AttributeError)

_FACTS = {
    "model": "model",
    "n_parameters": "parameters",
    "layers": "branches at",
    "n": "branches at each",
    "alpha": "strength (alpha)",
    "loss": "main loss",
    "targets": "targets",
    "n_samples": "samples",
    "steps": "updates",
    "seeds": "seeds",
    "budget": "budget",
    "seed": "first seed",
    "command": "command",
}


def is_examined(tree: xr.DataTree) -> bool:
    """Tell whether a tree is one that `examine` made."""
    return "status" in tree.dataset and "part" in tree.dataset.dims


def report_examined(tree: xr.DataTree, title: str | None) -> Report:
    """Make the report of one examination."""
    return Report(
        title=title or _title_of(tree),
        subtitle="How does this architecture respond to auxiliary branches?",
        introduction=INTRODUCTION,
        verdict=read_verdict(tree.attrs),
        facts=_facts_of_tree(tree),
        words=WORDS,
        parts=_part_rows(tree),
        total_seconds=_total_seconds(tree),
        preparation_seconds=_preparation_seconds(tree),
        layers=make_layer_table(tree),
        sections=[_section_of_part(tree, part) for part in _parts_of(tree)],
        footer=_write_footer(tree.attrs),
    )


def _total_seconds(tree: xr.DataTree) -> float:
    if "seconds" not in tree.dataset:
        return 0.0
    return float(np.nansum(tree.dataset["seconds"].values)) + _preparation_seconds(tree)


def _preparation_seconds(tree: xr.DataTree) -> float:
    """What was spent before the first part, on reading data, trying the model and timing it."""
    if "preparation_seconds" not in tree.dataset:
        return 0.0
    return float(tree.dataset["preparation_seconds"])


def report_runs(runs: Mapping[str, xr.DataTree], title: str | None) -> Report:
    """Make the report of several examinations: a table, then each part of all of them."""
    parts = list(dict.fromkeys(part for tree in runs.values() for part in _parts_of(tree)))
    return Report(
        title=title or "Runs side by side",
        subtitle=f"{len(runs)} runs: {', '.join(runs)}",
        introduction=INTRODUCTION,
        words=WORDS,
        runs=[Run(name, read_verdict(tree.attrs)) for name, tree in runs.items()],
        comparison=_compare_runs(runs),
        sections=[_section_of_runs(runs, part) for part in parts],
        footer=_write_footer(next(iter(runs.values())).attrs),
    )


def report_results(
    results: Mapping[str, xr.Dataset],
    title: str | None,
    *,
    tree_attributes: Mapping[Any, Any] | None = None,
) -> Report:
    """Make the report of results of any verbs, a section each.

    `tree_attributes`: of the tree that they are the nodes of, if it says what made it.
    """
    sections = [
        _section_of_result(f"result-{i}", name, result)
        for i, (name, result) in enumerate(results.items())
    ]
    first = next(iter(results.values()))

    # What holds for all of the page: of a tree its own attributes, of a single result that one's.
    attributes: Mapping[Any, Any] = first.attrs if len(results) == 1 else {}
    if tree_attributes and "made_by" in tree_attributes:
        attributes = tree_attributes

    return Report(
        title=title or str(attributes.get("made_by", "A result" if attributes else "Results")),
        facts=[*_facts_of(attributes), *_reasons_of(attributes)],
        sections=sections,
        footer=_write_footer(first.attrs),
    )


def read_verdict(attributes: Mapping[Any, Any]) -> Verdict | None:
    """Read the verdict from a tree's attributes, if it has one."""
    if "verdict" not in attributes:
        return None
    low, high = (as_number(attributes.get(f"verdict_interval_{end}")) for end in ("low", "high"))
    return Verdict(
        word=str(attributes["verdict"]),
        sentence=str(attributes.get("verdict_sentence", "")),
        rule=str(attributes.get("verdict_rule", "")),
        remedy=str(attributes.get("verdict_remedy", "")),
        measure=str(attributes.get("verdict_measure", "")),
        low=low,
        high=high,
        scale=_place_on_bar(low, high),
    )


def _place_on_bar(low: float, high: float) -> tuple[float, float, float] | None:
    """Place an interval and zero on a bar, in percent, symmetric about zero."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    reach = 1.15 * max(abs(low), abs(high), 1e-12)
    return tuple(round(50 + 50 * place / reach, 3) for place in (low, high, 0.0))  # type: ignore[return-value]  # three of three


def _parts_of(tree: xr.DataTree) -> list[str]:
    return [str(part) for part in tree.dataset["part"].values]


def _title_of(tree: xr.DataTree) -> str:
    return str(tree.attrs.get("title") or tree.attrs.get("model") or "An examination")


def _facts_of(attributes: Mapping[Any, Any]) -> list[tuple[str, str]]:
    facts = []
    for key, label in _FACTS.items():
        value = attributes.get(key)
        if value not in (None, "", "none"):
            number = as_number(value)
            facts.append((label, str(value) if math.isnan(number) else write_number(number)))
    return facts


def _facts_of_tree(tree: xr.DataTree) -> list[tuple[str, str]]:
    """As of any result, but without the size of an experiment that was not made."""
    attributes = dict(tree.attrs)
    if "response" not in tree.children:
        attributes |= {"steps": None, "seeds": None}

    if "command" in attributes:
        attributes["command"] = f"python -m resonance {attributes['command']}"

    budget = attributes.get("budget")
    seconds = as_number(attributes.get("budget_seconds"))
    if budget is not None and not math.isnan(seconds):
        is_word = str(budget).isalpha()
        attributes["budget"] = write_seconds(seconds) + (f" ({budget!r})" if is_word else "")

    return _facts_of(attributes)


def _reasons_of(attributes: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Say what a monitor could not measure or log, and why."""
    if attributes.get("made_by") != "resonance.Monitor":
        return []
    end = "_reason"
    return [
        (f"{str(key).removesuffix(end)}, not always", str(value))
        for key, value in attributes.items()
        if str(key).endswith(end)
    ]


def _part_rows(tree: xr.DataTree) -> list[PartRow]:
    seconds = {part: _number_of_part(tree, "seconds", part) for part in _parts_of(tree)}
    longest = max((value for value in seconds.values() if value > 0), default=1.0)
    return [
        PartRow(
            key=part,
            title=_title_of_part(part),
            status=_word_of_part(tree, "status", part),
            reason=_word_of_part(tree, "reason", part),
            seconds=seconds[part],
            share=0.0 if math.isnan(seconds[part]) else seconds[part] / longest,
        )
        for part in _parts_of(tree)
    ]


def _section_of_part(tree: xr.DataTree, part: str) -> Section:
    title, question, _ = _PARTS.get(part, (part.capitalize(), "", None))
    findings = _describe_part(tree, part)
    node = tree.children.get(part)
    return Section(
        key=part,
        title=title,
        question=question,
        lead=findings.lead,
        status=_word_of_part(tree, "status", part),
        reason=_word_of_part(tree, "reason", part),
        pictures=_draw_results(findings, part),
        surface=read_surface(findings.surface),
        numbers=findings.numbers,
        meanings=findings.meanings,
        setup=write_setup(_word_of_part(tree, "call", part), tree.attrs),
        call=_word_of_part(tree, "call", part),
        attributes=[] if node is None else _list_attributes(node.attrs),
    )


def _section_of_runs(runs: Mapping[str, xr.DataTree], part: str) -> Section:
    title, question, _ = _PARTS.get(part, (part.capitalize(), "", None))
    pictures: list[Picture] = []
    meanings: list[str] = []

    for number, (name, tree) in enumerate(runs.items()):
        findings = _describe_part(tree, part)

        # One picture of each run fits side by side; what it means is the same for all of them.
        pictures_of_run = _draw_results(findings, f"{part}-{number}", heading=name)
        pictures += pictures_of_run[:1]
        meanings = meanings or list(findings.meanings)

        # A run without a picture says why.
        status = _word_of_part(tree, "status", part) if part in _parts_of(tree) else "done"
        if not pictures_of_run and status != "done":
            meanings = [*meanings, f"{name}: {status}. {_word_of_part(tree, 'reason', part)}"]

    first = next(tree for tree in runs.values() if part in _parts_of(tree))
    return Section(
        key=part,
        title=title,
        question=question,
        pictures=pictures,
        meanings=meanings,
        setup=write_setup(_word_of_part(first, "call", part), first.attrs),
        call=_word_of_part(first, "call", part),
    )


def _section_of_result(key: str, name: str, result: xr.Dataset) -> Section:
    findings = anything.describe(result)
    verb = str(result.attrs.get("made_by", ""))
    return Section(
        key=key,
        title=name,
        question=f"Made by {verb}" if verb and verb != name else "",
        pictures=_draw_results(findings, key),
        surface=read_surface(findings.surface),
        numbers=findings.numbers,
        attributes=_list_attributes(result.attrs),
    )


def _describe_part(tree: xr.DataTree, part: str) -> Findings:
    if part not in tree.children:
        return Findings()
    node = tree.children[part]
    if part in _PARTS:
        try:
            return _PARTS[part][2](node)
        except _LACKING:
            pass  # of another layout: told without its words
    return anything.describe(result_of(node))


def _draw_results(findings: Findings, key: str, *, heading: str = "") -> list[Picture]:
    pictures: list[Picture] = []
    for result in findings.results:
        for caption, figure in draw_all(result):
            svg = to_svg(figure, name=f"{key}-{len(pictures)}", label=caption)
            pictures.append(Picture(svg, caption, heading))
    return pictures


def read_surface(surface: xr.Dataset | None) -> dict[str, object] | None:
    """Return a plane for the script that draws it; holes are None."""
    if surface is None or surface["loss"].size > 250_000:
        return None
    plane = surface["loss"].transpose("alpha", "beta")
    if not np.isfinite(plane.values).any() or min(plane.shape) < 2:
        return None

    # Six digits are more than a screen shows.
    heights = [
        [float(f"{z:.6g}") if np.isfinite(z) else None for z in row]
        for row in plane.values.tolist()
    ]
    return {
        "a": plane["alpha"].values.tolist(),
        "b": plane["beta"].values.tolist(),
        "z": heights,
        "name": str(plane.attrs.get("long_name", "loss")),
    }


def _compare_runs(runs: Mapping[str, xr.DataTree]) -> Table:
    """One row for each run, with the numbers that parts lead with."""
    columns: list[tuple[Column, Callable[[xr.DataTree], float]]] = [
        (Column("parameters"), lambda tree: as_number(tree.attrs.get("n_parameters"))),
        (Column("accuracy"), lambda tree: _number_of_node(tree, "model", "accuracy")),
        (Column("loss"), lambda tree: _number_of_node(tree, "model", "loss")),
        (
            Column("accuracy, difference", "branches minus plain, mean over seeds"),
            lambda tree: _number_of_node(tree, "response", "accuracy_difference"),
        ),
        (
            Column("loss, difference", "branches minus plain; below 0 the branches help"),
            lambda tree: _number_of_node(tree, "response", "loss_difference"),
        ),
        (
            Column("cosine, training", "of both gradients; 0 if they are unrelated"),
            lambda tree: _number_of_node(tree, "response", "cosine_total"),
        ),
        (
            Column("cosine, now", "the same at the given weights"),
            lambda tree: _number_of_node(tree, "gradients", "cosine_total"),
        ),
        (
            Column("convex share", "of the plane around the weights; 1 for a bowl"),
            lambda tree: _number_of_node(tree, "landscape/smoothness", "convex_share"),
        ),
        (
            Column("largest eigenvalue", "of the Hessian"),
            lambda tree: _number_of_node(tree, "curvature", "largest", "max"),
        ),
        (
            Column("attention entropy", "relative to uniform attention, which has 1"),
            lambda tree: _number_of_node(tree, "attention", "normalised_entropy"),
        ),
    ]
    numbers = [[read_cell(tree) for _, read_cell in columns] for tree in runs.values()]

    # A column that is empty for all runs tells nothing.
    places = [i for i in range(len(columns)) if any(not math.isnan(row[i]) for row in numbers)]

    header = [Column("run", is_text=True), Column("verdict", is_text=True)]
    header += [columns[i][0] for i in places]
    rows: list[list[str | float]] = [
        [name, str(tree.attrs.get("verdict", "")), *(row[i] for i in places)]
        for (name, tree), row in zip(runs.items(), numbers, strict=True)
    ]
    return Table(header, rows)


def _number_of_node(tree: xr.DataTree, path: str, name: str, reduce: str = "mean") -> float:
    try:
        node = tree[path]
    except KeyError:
        return math.nan
    return value_of(result_of(node), name, reduce) if isinstance(node, xr.DataTree) else math.nan


def _title_of_part(part: str) -> str:
    return _PARTS[part][0] if part in _PARTS else part.capitalize()


def _word_of_part(tree: xr.DataTree, name: str, part: str) -> str:
    if name not in tree.dataset:
        return ""
    return str(tree.dataset[name].sel(part=part).item())


def _number_of_part(tree: xr.DataTree, name: str, part: str) -> float:
    return float(tree.dataset[name].sel(part=part)) if name in tree.dataset else math.nan


def _list_attributes(attributes: Mapping[Any, Any]) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in attributes.items()]


def _write_footer(attributes: Mapping[Any, Any]) -> list[str]:
    versions = [
        f"{label} {attributes[key]}"
        for key, label in (("toolkit_version", "resonance-toolkit"), ("torch_version", "torch"))
        if key in attributes
    ]
    made_by = attributes.get("made_by")
    return [*([f"Measured by {made_by}"] if made_by else []), *versions]
