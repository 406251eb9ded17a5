from collections.abc import Mapping

from probes._branches.branches import Branches, Settings
from probes._model.pooling import Pool


def summarise(
    settings: Settings,
    branches: Mapping[str, Branches],
    pools: Mapping[str, Pool],
    *,
    attached: bool,
) -> str:
    """A table of a probe's attachment points: layer, width, pooling, branches, weights."""
    rows: list[tuple[str, ...]] = [("layer", "width", "pool", "static", "active", "weights")]
    for name, b in branches.items():
        counts = (b.width, pools[name].kind, b.n_static, settings.active, b.n_parameters)
        rows.append((name, *(str(count) for count in counts)))
    rows.append(("total", "", "", "", "", str(sum(b.n_parameters for b in branches.values()))))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    where = "attached" if attached else "detached"
    known = f"n={settings.n}, classes={settings.classes}, method={settings.method!r}"
    return "\n".join([f"Probe({known}, {where})", *lines])
