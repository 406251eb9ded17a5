"""What the credit scripts print: orders of the methods, and what was spent."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from lab.data.identity import NAMES, identify
from lab.data.images import load
from lab.results.verdicts import Row, join_notes, judge
from lab.studies.conditions import Conditions, obstacles
from lab.training.scales import plural

# Methods whose numbers differ by less than this share of the larger one hold the same place.
_EQUAL = 0.03


def budget_in_words(data: str, per_class: int | None, epochs: str, n_seeds: int) -> str:
    """Say what was spent.

    Examples:
        >>> budget_in_words("some/cifar10.npz", None, "3 epochs", 1)
        'cifar10.npz, all images per class, 3 epochs, 1 seed'
    """
    images = "all images" if per_class is None else plural(per_class, "image")
    return f"{data.rsplit('/')[-1]}, {images} per class, {epochs}, {plural(n_seeds, 'seed')}"


def audit_obstacles(
    data: str, per_class: int | None, epochs: int, n_seeds: int, *, published_epochs: int
) -> list[str]:
    """Say what keeps these networks from being compared with the audit's.

    It has all of CIFAR-10 and three seeds.
    """
    seeds = 3
    ours = Conditions(data=identify(load(data)), per_class=per_class, epochs=epochs, seeds=n_seeds)
    paper = Conditions(data=NAMES["cifar10"], epochs=published_epochs, seeds=seeds)
    return obstacles(ours, paper)


def order_row(
    metric: str,
    published: Mapping[str, float],
    ours: Mapping[str, float],
    obstacles: Sequence[str] = (),
) -> Row:
    """Compare the published order of the methods with ours.

    Methods that are NaN here (all their networks diverged) have no place, and then no verdict.
    """
    # A nudge is to lower the loss: the most negative change comes first.
    sign = -1 if metric.endswith("change") else 1
    published_order = order_methods({name: sign * value for name, value in published.items()})
    order = order_methods(
        {name: sign * value for name, value in ours.items() if math.isfinite(value)}
    )

    undefined_methods = [name for name, value in ours.items() if not math.isfinite(value)]
    note = f"undefined here: {', '.join(undefined_methods)}" if undefined_methods else ""
    verdict = judge(order == published_order, comparable=not obstacles and not undefined_methods)
    note = join_notes(*obstacles, note)
    return Row(f"order by {metric}", published_order, order, verdict, note)


def order_methods(values: Mapping[str, float]) -> str:
    """Order methods by size, the largest first; those within 3 percent of the next are equal.

    Examples:
        >>> order_methods({"SB": 0.45, "CB": 0.359, "DFA": 0.36})
        'SB > CB = DFA'
    """
    names = sorted(values, key=values.__getitem__, reverse=True)

    groups = [names[:1]]
    for name, next_name in pairwise(names):
        difference = abs(values[name] - values[next_name])
        if difference <= _EQUAL * abs(values[name]):
            groups[-1].append(next_name)
        else:
            groups.append([next_name])

    # Within a group by name, so that orders can be compared as texts.
    text = " > ".join(" = ".join(sorted(group)) for group in groups)
    return text.replace("+pen", "")
