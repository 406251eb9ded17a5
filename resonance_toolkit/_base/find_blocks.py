"""The repeated blocks of a model, found from its structure alone.

A *series* is a set of modules of one class, inside the same module, that hold most of its weights:
the blocks of a transformer, the stages of a ResNet. The search goes from the model inwards to the
first series, and then inside each of its members, so that stages open into their blocks.
"""

from torch import nn

from resonance_toolkit._base.checks import check_module
from resonance_toolkit._base.find_layers import find_layers, unwrap

# More blocks than this are many to attach to or to nudge one by one: stages are taken instead, if
# there are any (a ResNet-152 has 50 blocks in four stages). Most transformers have at most 32.
_MOST_BLOCKS = 32

# Shares of a module's weights, chosen so that the families of timm, torchvision and transformers
# that the tests list come out as their authors call them. A series must hold this much ...
_SERIES = 0.4
# ... a part that is searched on its own this much: both towers of a model with two, no stem ...
_TOWER = 0.15
# ... and the series inside a stage this much, or the stage is a block with something inside.
_STAGE_FILLING = 0.7

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Blocks(dict[str, nn.Module]):
    """Modules by dotted name, and the reason why these."""

    def __init__(self, modules: dict[str, nn.Module], reason: str) -> None:
        super().__init__(modules)
        self.reason = reason

    def __repr__(self) -> str:
        return f"Blocks({', '.join(self)}: {self.reason})"


def find_blocks(model: nn.Module) -> Blocks:
    """Find the repeated blocks or stages of a model, in order of definition.

    Verbs use them if you leave out `layers` or `blocks`. If a model has no repeated blocks, these
    are its parts of several layers, or else all layers with weights except the last.

    Args:
        model: Any module, wrapped or not.

    Returns:
        Modules by dotted name, as in `find_layers`; `reason` says why they were chosen.

    Raises:
        ValueError: If the model has fewer than two layers with weights.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(4, 2, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, 3)
        >>> find_blocks(nn.Sequential(nn.Embedding(9, 4), encoder, nn.Linear(4, 2)))
        Blocks(1.layers.0, 1.layers.1, 1.layers.2: 3 modules of class TransformerEncoderLayer)
    """
    check_module(model)
    root = unwrap(model)
    layers = find_layers(model, "**") if root._modules else {}
    names = {id(module): name for name, module in layers.items()}

    stages = _find_series(root)
    if stages:
        blocks = [block for stage in stages for block in _open_stage(stage)]
        if len(blocks) > _MOST_BLOCKS and 2 <= len(stages) < len(blocks):
            reason = f"{len(stages)} stages, since {len(blocks)} blocks are many"
            return _name_blocks(stages, names, reason)
        return _name_blocks(blocks, names, _count_classes(blocks))

    parts = _find_parts(root)
    if parts:
        return _name_blocks(parts, names, f"no module is repeated; {len(parts)} parts of the model")

    leaves = _find_leaves(root)
    if len(leaves) < 2:
        raise ValueError(
            "`model`: expected repeated blocks or several layers with weights, got neither; name "
            "the layers"
        )
    reason = "no module is repeated; every layer with weights but the last"
    return _name_blocks(leaves[:-1], names, reason)


def _name_blocks(modules: list[nn.Module], names: dict[int, str], reason: str) -> Blocks:
    # A module that is used twice has one name and is one block.
    return Blocks({names[id(module)]: module for module in modules}, reason)


def _count_classes(blocks: list[nn.Module]) -> str:
    counts: dict[str, int] = {}
    for block in blocks:
        counts[type(block).__name__] = counts.get(type(block).__name__, 0) + 1
    return " and ".join(f"{count} modules of class {name}" for name, count in counts.items())


def _find_series(module: nn.Module) -> list[nn.Module]:
    """Return the outermost series inside a module; of several towers, all of theirs."""
    children = [child for child in module.children() if _is_block(child)]
    n_weights = sum(_count_weights(child) for child in children)

    # A list of stages is one series, though the first stages often have blocks of another class;
    # so is a list of blocks that are called in turn, such as attention and state spaces.
    is_list_of_stages = _is_container(module) and all(_is_container(child) for child in children)
    is_list = is_list_of_stages or type(module) is nn.ModuleList
    series = children if is_list else _largest_kind(children)

    is_half_of_them = 2 * len(series) >= len(children)
    n_inside = sum(_count_weights(member) for member in series)
    if len(series) > 1 and is_half_of_them and n_inside > _SERIES * n_weights:
        return series

    return [
        block
        for child in children
        if _count_weights(child) >= _TOWER * n_weights
        for block in _find_series(child)
    ]


def _largest_kind(modules: list[nn.Module]) -> list[nn.Module]:
    by_kind: dict[frozenset[type], list[nn.Module]] = {}
    for module in modules:
        by_kind.setdefault(_kind_of(module), []).append(module)
    return max(by_kind.values(), key=len, default=[])


def _open_stage(stage: nn.Module) -> list[nn.Module]:
    """Return the series that fills a stage; the stage itself if it is a block."""
    lists = [child for child in stage.children() if _is_container(child)]
    for container in [stage] if _is_container(stage) else lists:
        blocks = [child for child in container.children() if _is_block(child)]
        n_inside = sum(_count_weights(block) for block in blocks)

        # The list of a block's own parts (attention, MLP) has no two of a kind.
        n_of_a_kind = len(_largest_kind(blocks))
        is_series = len(blocks) == 1 or (n_of_a_kind > 1 and 2 * n_of_a_kind >= len(blocks))
        is_filled = n_inside > _STAGE_FILLING * _count_weights(stage)
        if is_filled and (is_series or _is_container(stage)):
            return [inner for block in blocks for inner in _open_stage(block)]
    return [stage]


def _find_parts(module: nn.Module) -> list[nn.Module]:
    """Return at least three parts side by side, such as the stages of a U-Net."""
    parts = [child for child in module.children() if _is_block(child)]
    if len(parts) > 2:
        return parts

    # One part that holds nearly everything: a backbone under a name of its own.
    for part in parts:
        if _count_weights(part) > _STAGE_FILLING * _count_weights(module):
            return _find_parts(part)
    return []


def _find_leaves(root: nn.Module) -> list[nn.Module]:
    """Return the innermost modules with weights that are called as modules."""
    # Attention of torch reads the weights of its output projection, and calls no module inside.
    attentions = [module for module in root.modules() if isinstance(module, nn.MultiheadAttention)]
    never_called = {id(inner) for module in attentions for inner in module.children()}

    # Embeddings of positions are the same for all samples, those of tokens no layer to attach to.
    return [
        module
        for module in root.modules()
        if _has_weights(module)
        and (_is_leaf(module) or module in attentions)
        and id(module) not in never_called
        and not isinstance(module, nn.Embedding)
    ]


def _kind_of(module: nn.Module) -> frozenset[type]:
    """Tell modules apart by class; containers by what they contain."""
    if not _is_container(module):
        return frozenset({type(module)})
    contents = [_kind_of(child) for child in module.children() if _is_block(child)]
    return frozenset({type(module)}).union(*contents)


def _is_container(module: nn.Module) -> bool:
    return type(module) in _CONTAINERS


def _is_block(module: nn.Module) -> bool:
    """Tell whether a module has several layers with weights; a convolution and its norm are one."""
    # These are never called: they are as much as what is in them.
    if type(module) in (nn.ModuleList, nn.ModuleDict):
        return any(_is_block(child) for child in module.children())
    return sum(_has_weights(inner) for inner in module.modules()) > 1


def _count_weights(module: nn.Module) -> int:
    # Without embeddings, which may outweigh all blocks and are often shared by several parts.
    return sum(
        parameter.numel()
        for inner in module.modules()
        if not isinstance(inner, nn.Embedding)
        for parameter in inner.parameters(recurse=False)
    )


def _has_weights(module: nn.Module) -> bool:
    # Vectors alone are the scales of a norm or a bias.
    return any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None
