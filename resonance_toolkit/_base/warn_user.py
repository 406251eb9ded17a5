import sys
import warnings

# Frames of these packages, and of `with` statements around them, are ours, not the user's.
_NOT_THE_USERS = frozenset(
    {
        "attention",
        "contextlib",
        "gradients",
        "landscape",
        "nudging",
        "probes",
        "resonance",
        "resonance_toolkit",
    }
)


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called the toolkit, however deep we are.

    Examples:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("all used")
        >>> str(caught[0].message)
        'all used'
    """
    # 1 would be this function; by frame, since hops differ from verb to verb.
    depth = 1
    frame = sys._getframe()
    while frame.f_back is not None and is_ours(frame.f_globals):
        frame = frame.f_back
        depth += 1
    warnings.warn(message, stacklevel=depth)


def is_ours(module_globals: dict[str, object]) -> bool:
    """Tell whether a module is the toolkit's (or runs its `with` statements), by its globals."""
    package = str(module_globals.get("__name__", "")).partition(".")[0]
    return package in _NOT_THE_USERS
