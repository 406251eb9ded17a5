"""What the credit scripts print: orders of the methods, and what was spent."""

import math
from collections.abc import Mapping
from itertools import pairwise

from lab.results.publish import Row
from lab.training.scales import counted


def spent(data: str, per_class: int | None, epochs: str, n_seeds: int) -> str:
    """The budget in words.

    Examples:
        >>> spent("some/cifar10.npz", None, "3 epochs", 1)
        'cifar10.npz, all images per class, 3 epochs, 1 seed'
    """
    images = "all images" if per_class is None else counted(per_class, "image")
    return f"{data.rsplit('/')[-1]}, {images} per class, {epochs}, {counted(n_seeds, 'seed')}"


def order_row(
    metric: str, published: Mapping[str, float], here: Mapping[str, float], scale: str
) -> Row:
    """The published order of the methods beside ours; a verdict at the paper's scale only.

    Methods that are NaN here (all their networks diverged) have no place, and then no verdict.
    """
    sign = -1 if metric.endswith("change") else 1  # a nudge is to lower the loss
    known = {m: v for m, v in here.items() if math.isfinite(v)}
    orders = [order({m: sign * v for m, v in sizes.items()}) for sizes in (published, known)]
    verdict = "agrees" if orders[0] == orders[1] else "disagrees"
    missing = [m for m in here if m not in known]
    note = f"undefined here: {', '.join(missing)}" if missing else ""
    comparable = scale == "paper" and not missing
    return Row(f"order by {metric}", *orders, verdict if comparable else "not comparable", note)


def order(values: Mapping[str, float]) -> str:
    """Methods by size, the largest first; those within 3 percent of the next are equal.

    Examples:
        >>> order({"SB": 0.45, "CB": 0.359, "DFA": 0.36})
        'SB > CB = DFA'
    """
    names = sorted(values, key=values.__getitem__, reverse=True)
    groups = [names[:1]]
    for one, other in pairwise(names):
        alike = abs(values[one] - values[other]) <= 0.03 * abs(values[one])
        groups[-1].append(other) if alike else groups.append([other])
    return " > ".join(" = ".join(sorted(group)) for group in groups).replace("+pen", "")
