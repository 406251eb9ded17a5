from collections.abc import Mapping

from probes._branches.branches import Branches, Settings
from probes._model.pooling import Pool
from resonance_toolkit import text_table


def table_of_points(
    settings: Settings, branches: Mapping[str, Branches], pools: Mapping[str, Pool]
) -> str:
    """Make a table of attachment points: layer, width, pooling, branches, weights."""
    rows: list[tuple[str, ...]] = [("layer", "width", "pool", "static", "active", "weights")]

    for name, layer_branches in branches.items():
        cells = (
            layer_branches.width,
            _describe_pool(pools[name]),
            layer_branches.n_static,
            settings.active,
            layer_branches.n_parameters,
        )
        rows.append((name, *map(str, cells)))

    n_parameters = sum(layer_branches.n_parameters for layer_branches in branches.values())
    rows.append(("total", "", "", "", "", str(n_parameters)))
    return text_table(rows)


def _describe_pool(pool: Pool) -> str:
    return f"{pool.kind} or spatial" if pool.waits_for_targets else pool.kind
