"""The tree that comes out: what every part came to, the verdict, and the parts' Datasets."""

import numpy as np
import xarray as xr

from resonance_toolkit import provenance, unwrap
from resonance_toolkit._front.examine.parts import CALLS
from resonance_toolkit._front.examine.plan import Plan
from resonance_toolkit._front.examine.settings import describe_alpha
from resonance_toolkit._front.examine.store import Store
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.verdict import judge
from resonance_toolkit._front.examine.work import Outcome

# Pieces that are no nodes: runs, and what is joined.
_IS_NO_NODE = " of "


def make_tree(
    subject: Subject, plan: Plan | None, store: Store, outcomes: dict[str, Outcome]
) -> xr.DataTree:
    """Put everything together."""
    datasets: dict[str, xr.Dataset] = {"/": _make_root(subject, plan, store, outcomes)}
    for part in outcomes:
        for name, dataset in store.pieces.items():
            if _IS_NO_NODE in name or name.partition("/")[0] != part:
                continue
            if part not in store.pieces:
                continue  # a child of what is not there
            if name == part:
                reasons = outcomes[part].child_reasons
                dataset = dataset.assign_attrs(
                    {f"{child}_reason": reason for child, reason in reasons.items()}
                )
            else:
                dataset = _rename_differing_dims(
                    store.pieces[part], dataset, name.partition("/")[2]
                )
            datasets[f"/{name}"] = dataset

    return xr.DataTree.from_dict(datasets)


def _rename_differing_dims(parent: xr.Dataset, child: xr.Dataset, name: str) -> xr.Dataset:
    """Rename the dimensions of a child that differ from its parent's: a tree would share them."""
    differing = [
        dim
        for dim in child.dims
        if dim in parent.indexes and not parent.indexes[dim].equals(child.indexes.get(dim))
    ]
    return child.rename({dim: f"{name}_{dim}" for dim in differing})


def _make_root(
    subject: Subject, plan: Plan | None, store: Store, outcomes: dict[str, Outcome]
) -> xr.Dataset:
    settings = subject.settings
    parts = list(outcomes)
    response = store.pieces.get("response")
    sizes = {} if plan is None else _sizes_as_made(plan, response)
    calls = [CALLS[part](subject, sizes[part]) if sizes else "" for part in parts]
    columns = {
        "status": ([outcomes[part].status for part in parts], "what the part came to"),
        "reason": (
            [_reason_of(outcomes[part]) for part in parts],
            "why it is not done, or what in it is not",
        ),
        "call": (calls, "what repeats its numbers by hand"),
        "warnings": ([outcomes[part].warnings for part in parts], "warnings on the way"),
    }
    root = xr.Dataset(
        {
            name: ("part", np.array(texts, dtype=str), {"long_name": long_name})
            for name, (texts, long_name) in columns.items()
        },
        coords={"part": ("part", np.array(parts, dtype=str), {"long_name": "part"})},
    )
    seconds = np.array([outcomes[part].seconds for part in parts], dtype=float)
    root["seconds"] = ("part", seconds, {"long_name": "time spent", "units": "s"})
    root["preparation_seconds"] = (
        (),
        store.facts["preparation_seconds"],
        {"long_name": "time spent on reading data, trying the model and timing it", "units": "s"},
    )

    reason = outcomes["response"].reason if "response" in outcomes else ""
    training = sizes.get("response", {})
    root.attrs = provenance(
        "resonance.examine",
        subject.model,
        title=settings.title or type(unwrap(subject.model)).__name__,
        layers=store.facts["layers"],
        layers_reason=store.facts["layers_reason"],
        n=settings.n,
        alpha=describe_alpha(settings.alpha),
        seed=settings.seed,
        steps=training.get("steps", 0),
        seeds=training.get("seeds", 0),
        budget=str(settings.budget),
        budget_seconds=settings.budget_seconds,
        loss=subject.loss.name,
        targets=store.facts["targets"],
        n_samples=subject.n_available,
    )
    root.attrs |= judge(response, reason, subject.only_class).as_attributes()
    return root


def _reason_of(outcome: Outcome) -> str:
    """Why a part is not done, or why something in it is missing."""
    missing_children = [f"{child}: {reason}" for child, reason in outcome.child_reasons.items()]
    return "; ".join(filter(None, [outcome.reason, *missing_children]))


def _sizes_as_made(plan: Plan, response: xr.Dataset | None) -> dict[str, dict[str, int]]:
    """The sizes of all parts, with the seeds that there was time for."""
    sizes = {part: dict(part_sizes) for part, part_sizes in plan.sizes.items()}
    if response is not None and "response" in sizes:
        sizes["response"]["seeds"] = response.sizes["seed"]
    return sizes
