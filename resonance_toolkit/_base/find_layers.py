"""Layers by name: shell patterns over dotted names, whatever wrappers are around the model."""

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

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

# How many names an error lists after the closest ones: all of a large model would fill a terminal.
_LISTED_NAMES = 10


# A module's name without wrappers, the name that `named_modules()` gives it, and the module.
_NamedModule: TypeAlias = tuple[str, str, nn.Module]


def find_layers(
    model: nn.Module, patterns: str | Sequence[str], *, argument: str = "layers"
) -> dict[str, nn.Module]:
    """Find the layers that shell patterns name, in order of definition.

    A star stays within one level, as in a shell: `"blocks.*"` is every block, without the modules
    inside. `**` crosses levels. Prefixes that `torch.compile` and data-parallel, checkpoint and
    averaging wrappers add to names are ignored.

    Args:
        model: Any module, wrapped or not.
        patterns: One or more names or patterns, such as `"layer[1-4]"`.
        argument: The name of the user's argument, for the error.

    Returns:
        Modules by dotted name, as in `named_modules()` of the unwrapped model.

    Raises:
        ValueError: If a pattern matches nothing; the message lists the closest names.

    Examples:
        >>> model = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
        >>> list(find_layers(model, ["1.*", "0"]))
        ['0', '1.0', '1.1']
    """
    spellings: dict[str, set[str]] = {}
    modules: dict[str, nn.Module] = {}

    # Wrappers come before what they hold, so that the innermost module keeps the name.
    for name, wrapped_name, module in _walk(model):
        if wrapped_name != name:
            spellings.setdefault(name, {name}).add(wrapped_name)
        modules[name] = module
    modules.pop("", None)

    names = select(modules, patterns, argument=argument, spellings=spellings)

    # A module under two names is one layer.
    first_names: dict[int, str] = {}
    for name in names:
        first_names.setdefault(id(modules[name]), name)
    return {name: modules[name] for name in first_names.values()}


def select(
    names: Iterable[str],
    patterns: str | Sequence[str],
    *,
    argument: str,
    spellings: Mapping[str, set[str]] | None = None,
) -> list[str]:
    """Pick the names that match any shell pattern, in their own order.

    Args:
        names: Dotted names, such as those of layers or parameters.
        patterns: One or more names or patterns; `*` stays within a level, `**` crosses levels.
        argument: The name of the user's argument, for the error.
        spellings: Other ways to write a name.

    Raises:
        ValueError: If a pattern matches nothing.

    Examples:
        >>> select(["a.weight", "a.bias", "b.c.bias"], "**.bias", argument="over")
        ['a.bias', 'b.c.bias']
    """
    all_names = list(names)
    is_iterable = isinstance(patterns, Iterable) and not isinstance(patterns, str)
    pattern_list: list[Any] = list(patterns) if is_iterable else [patterns]

    if not pattern_list or not all(isinstance(pattern, str) for pattern in pattern_list):
        raise ValueError(f"`{argument}`: expected one or more names or patterns, got {patterns!r}")
    if pattern_list == ["**"] and all_names:
        return all_names

    names_that_match: set[str] = set()
    for pattern in pattern_list:
        matches = {
            name
            for name in all_names
            if pattern in (name, "**")
            or any(_matches(spelling, pattern) for spelling in (spellings or {}).get(name, {name}))
        }
        if not matches:
            raise ValueError(_unknown_name(pattern, all_names, argument))
        names_that_match |= matches

    return [name for name in all_names if name in names_that_match]


def unwrap(model: nn.Module) -> nn.Module:
    """Strip the wrappers around a model: compiled, data parallel, averaged.

    Examples:
        >>> import torch
        >>> layer = nn.Linear(1, 1)
        >>> unwrap(torch.compile(layer)) is layer
        True
    """
    attribute = _wrapping_attribute(model)
    while attribute is not None:
        model = getattr(model, attribute)
        attribute = _wrapping_attribute(model)
    return model


def _wrapping_attribute(module: nn.Module) -> str | None:
    """Return under which attribute a wrapper holds its module; None if it is not a wrapper."""
    if not module._modules:
        return None

    for base in type(module).__mro__:
        attribute = _WRAPPERS.get(base.__name__)
        if attribute and base.__module__.startswith("torch.") and attribute in module._modules:
            return attribute
    return None


def _walk(model: nn.Module) -> list[_NamedModule]:
    modules: list[_NamedModule] = []
    pending: list[_NamedModule] = [("", "", model)]

    # A stack instead of a recursive closure, which would keep the model alive in a cycle.
    while pending:
        named_module = pending.pop()
        modules.append(named_module)
        name, wrapped_name, module = named_module
        prefix = f"{name}." if name else ""
        wrapped_prefix = f"{wrapped_name}." if wrapped_name else ""

        attribute = _wrapping_attribute(module)
        if attribute is not None:
            pending.append((name, wrapped_prefix + attribute, getattr(module, attribute)))

        # Not `named_children()`, which would hide a module's second name.
        elif module._modules:
            pending += [
                (prefix + child_name, wrapped_prefix + child_name, child)
                for child_name, child in reversed(module._modules.items())
                if child is not None
            ]

    return modules


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


def _unknown_name(pattern: str, names: list[str], argument: str) -> str:
    closest = difflib.get_close_matches(pattern, names, n=5, cutoff=0.4)
    hint = f"; did you mean {', '.join(map(repr, closest))}?" if closest else "."

    listing = ", ".join(names[:_LISTED_NAMES])
    if len(names) > _LISTED_NAMES:
        listing += f", ... ({len(names)} in all)"
    return f"`{argument}`: nothing is called {pattern!r}{hint} Known: {listing or 'none'}"
