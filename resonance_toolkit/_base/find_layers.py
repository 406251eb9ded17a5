import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from torch import nn

# Wrappers that hold the user's model under one attribute. Told by class name along the MRO, so that
# none of them need be importable; by class, because a user's own submodule may be called `module`.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}


def find_layers(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, nn.Module]:
    """Find the layers that shell patterns name, in order of definition.

    A star stays within one level, as in a shell (`"blocks.*"` is every block, not what is inside
    them); `**` crosses levels. Prefixes that `torch.compile`, data-parallel, checkpoint and
    averaging wrappers put before names are ignored.

    Args:
        model: Any module, wrapped or not.
        patterns: One or more names or patterns, such as `"layer[1-4]"`.

    Returns:
        Modules by dotted name, as `named_modules()` of the unwrapped model spells it.

    Raises:
        ValueError: If a pattern matches nothing; the text has the closest names and all layers.

    Examples:
        >>> model = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
        >>> list(find_layers(model, ["1.*", "0"]))
        ['0', '1.0', '1.1']
    """
    spellings: dict[str, set[str]] = {}
    modules: dict[str, nn.Module] = {}
    for name, raw, module in _walk(model):
        if raw != name:
            spellings.setdefault(name, {name}).add(raw)
        modules[name] = module  # innermost last: a checkpoint wrapper gives way to its layer
    modules.pop("", None)
    chosen = select(modules, patterns, argument="layers", spellings=spellings)
    found: dict[int, str] = {}
    for name in chosen:
        found.setdefault(id(modules[name]), name)  # a module under two names is one layer
    return {name: modules[name] for name in found.values()}


def select(
    names: Iterable[str],
    patterns: str | Sequence[str],
    *,
    argument: str,
    spellings: dict[str, set[str]] | None = None,
) -> list[str]:
    """Pick the names that match any shell pattern, in their own order.

    Args:
        names: Dotted names, such as those of layers or parameters.
        patterns: One or more names or patterns; `*` stays within a level, `**` crosses levels.
        argument: What the user calls `patterns`, for the error.
        spellings: Other ways to write a name.

    Raises:
        ValueError: If a pattern matches nothing.

    Examples:
        >>> select(["a.weight", "a.bias", "b.c.bias"], "**.bias", argument="over")
        ['a.bias', 'b.c.bias']
    """
    known = list(names)
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not wanted or not all(isinstance(p, str) for p in wanted):
        raise ValueError(f"`{argument}`: expected one or more names or patterns, got {patterns!r}")
    if wanted == ["**"] and known:
        return known
    chosen: set[str] = set()
    for pattern in wanted:
        hits = {
            name
            for name in known
            if pattern in (name, "**")
            or any(_matches(way, pattern) for way in (spellings or {}).get(name, {name}))
        }
        if not hits:
            raise ValueError(_unknown(pattern, known, argument))
        chosen |= hits
    return [name for name in known if name in chosen]


def unwrap(model: nn.Module) -> nn.Module:
    """Strip the wrappers around a model: compiled, data parallel, averaged.

    Examples:
        >>> import torch
        >>> layer = nn.Linear(1, 1)
        >>> unwrap(torch.compile(layer)) is layer
        True
    """
    inner = _inner(model)
    while inner is not None:
        model = inner[1]
        inner = _inner(model)
    return model


def _inner(module: nn.Module) -> tuple[str, nn.Module] | None:
    if not module._modules:
        return None
    for cls in type(module).__mro__:
        attribute = _WRAPPERS.get(cls.__name__)
        if attribute and cls.__module__.startswith("torch.") and attribute in module._modules:
            return attribute, getattr(module, attribute)
    return None


def _walk(model: nn.Module) -> list[tuple[str, str, nn.Module]]:
    """The name of every module without wrappers, the one with them, and the module."""
    found = []

    def visit(module: nn.Module, name: str, raw: str) -> None:
        found.append((name, raw, module))
        inner = _inner(module)
        if inner is not None:
            visit(inner[1], name, f"{raw}.{inner[0]}".lstrip("."))
            return
        for child_name, child in module._modules.items():  # named_children() would hide an alias
            if child is not None:
                path = f"{name}.{child_name}".lstrip(".")
                visit(child, path, f"{raw}.{child_name}".lstrip("."))

    visit(model, "", "")
    return found


def _matches(name: str, pattern: str) -> bool:
    return _match_parts(name.split("."), pattern.split("."))


def _match_parts(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_match_parts(parts[i:], patterns[1:]) for i in range(len(parts) + 1))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], patterns[0])
        and _match_parts(parts[1:], patterns[1:])
    )


def _unknown(pattern: str, known: list[str], argument: str) -> str:
    close = difflib.get_close_matches(pattern, known, n=5, cutoff=0.4)
    hint = f"; did you mean {', '.join(map(repr, close))}?" if close else "."
    listing = ", ".join(known[:200]) + (f", ... ({len(known)} in all)" if len(known) > 200 else "")
    return f"`{argument}`: nothing is called {pattern!r}{hint} Known: {listing or 'none'}"
