"""The laboratory behind the examples: the papers' backbones and data."""

from importlib.util import find_spec

# What every script needs besides the toolkit, by the names that are imported.
_PACKAGES = ["accelerate", "sklearn", "timm", "torchvision"]

_missing = [name for name in _PACKAGES if find_spec(name) is None]
if _missing:
    raise SystemExit(
        f"The examples need packages that are not installed ({', '.join(_missing)}); "
        "run: pip install 'resonance-toolkit[examples]'"
    )
