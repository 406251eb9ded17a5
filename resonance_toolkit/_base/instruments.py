"""The instruments by their short names, told apart from others of the same name.

`attention` may be a script's neighbour, and `gradients` a distribution that was installed over
ours: Python imports whatever it meets first, and pip overwrites without a word.
"""

import sys
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

# One public name of each, by which its module is known.
INSTRUMENTS = {
    "probes": "attach",
    "landscape": "grid",
    "gradients": "Trace",
    "attention": "capture",
    "nudging": "nudge",
}


def load_instrument(name: str) -> ModuleType:
    """Import one of our instruments, and nothing else that is called so.

    Args:
        name: A key of `INSTRUMENTS`.

    Raises:
        ImportError: If the name leads elsewhere; the text says where to, and what to do.

    Examples:
        >>> load_instrument("attention").__name__
        'attention'
    """
    # Looked at before it is imported: the code of a stranger does not run.
    place = _find_place(name)
    our_place = Path(__file__).parents[2] / name / "__init__.py"
    if place is None or not _is_same_file(place, our_place):
        raise ImportError(_say_shadowed(name, place), name=name)

    try:
        module = import_module(name)
    except Exception as error:
        if _other_distributions(name):
            raise ImportError(say_overwritten(name, place), name=name) from error
        raise

    if not _is_ours(module):
        raise ImportError(say_overwritten(name, place), name=name)
    return module


def _find_place(name: str) -> Path | None:
    if name in sys.modules:
        place = getattr(sys.modules[name], "__file__", None)
    else:
        spec = find_spec(name)
        place = spec.origin if spec is not None else None
    return None if place is None else Path(place)


def _is_same_file(place: Path, other_place: Path) -> bool:
    return place.exists() and other_place.exists() and place.samefile(other_place)


def _is_ours(module: ModuleType) -> bool:
    landmark = getattr(module, INSTRUMENTS[module.__name__], None)
    return getattr(landmark, "__module__", "").partition(".")[0] == module.__name__


def _other_distributions(name: str) -> list[str]:
    distributions = packages_distributions().get(name, [])
    return sorted(set(distributions) - {"resonance-toolkit"})


def _say_shadowed(name: str, place: Path | None) -> str:
    if place is None:
        return f"`{name}` of resonance-toolkit is missing; install it again: {_reinstall()}"
    return (
        f"`{name}` is {place}, not the package of resonance-toolkit; rename that file or folder, "
        "or start Python where it does not come first on the path"
    )


def say_overwritten(name: str, place: Path) -> str:
    """Name the distribution whose file is in the place of ours, and the cure."""
    distributions = _other_distributions(name)
    culprit = (
        f"the distribution {' and '.join(distributions)}"
        if distributions
        else "another distribution"
    )
    uninstall = f"pip uninstall {' '.join(distributions)}, then " if distributions else ""
    return (
        f"`{name}` of resonance-toolkit was overwritten by {culprit} ({place}); "
        f"{uninstall}{_reinstall()}"
    )


def _reinstall() -> str:
    return "pip install --force-reinstall --no-deps resonance-toolkit"
