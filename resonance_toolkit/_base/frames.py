"""Which frames of a call stack, or of a traceback, are the toolkit's own."""

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


def is_ours(module_globals: dict[str, object]) -> bool:
    """Tell whether a module is the toolkit's (or runs its `with` statements), by its globals."""
    package = str(module_globals.get("__name__", "")).partition(".")[0]
    return package in _NOT_THE_USERS
