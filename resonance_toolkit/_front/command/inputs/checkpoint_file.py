"""Weights from a file: tensors only, whatever else it may hold is not run."""

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import load_tensors
from resonance_toolkit._front.command.mistake import Mistake, closest

# Where training scripts put the weights among other things, the likeliest first.
_PLACES = ("state_dict", "model_state_dict", "model", "module", "net", "weights")

# What DistributedDataParallel, torch.compile and Lightning put before a name.
_WRAPPERS = ("module.", "_orig_mod.")
_HOLDERS = ("model.", "net.", "network.", "backbone.")

# Names that are listed of many that do not fit.
_MOST_NAMES = 3


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Load a model's weights from a file of torch or safetensors.

    Raises:
        Mistake: If there is no such file, it holds more than tensors, or does not fit.
    """
    if not path.is_file():
        raise Mistake(f"--checkpoint: no file {path}")

    state = _find_state(_read_file(path), path)
    state = _strip_wrappers(state, model.state_dict())
    _check_fit(state, model, path)
    model.load_state_dict(state)


def _read_file(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise Mistake(
                "--checkpoint: .safetensors needs safetensors; run: pip install safetensors"
            ) from error
        read_tensors: Any = load_file
    elif zipfile.is_zipfile(path):
        read_tensors = load_tensors
    else:
        read_tensors = _read_old_format

    try:
        return read_tensors(path)
    except Exception as error:
        raise Mistake(_say_unread(path, error)) from error


def _read_old_format(path: Path) -> Any:
    # As torch wrote before version 1.6, and torchvision's older weights still are.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


def _say_unread(path: Path, error: Exception) -> str:
    # torch names what it refuses to call, `GLOBAL posix.system`, and then how to allow it.
    stranger = re.search(r"GLOBAL ([\w.]+)", str(error))
    if stranger is None:
        return (
            f"--checkpoint: {path} cannot be read; expected what "
            "torch.save(model.state_dict(), path) or safetensors writes"
        )
    return (
        f"--checkpoint: {path} holds more than tensors ({stranger[1]}), which could run code when "
        "it is read; save model.state_dict() and give that"
    )


def _find_state(contents: Any, path: Path) -> dict[str, Tensor]:
    if _is_state(contents):
        return dict(contents)

    if isinstance(contents, Mapping):
        for place in _PLACES:
            if _is_state(contents.get(place)):
                return dict(contents[place])

        keys = ", ".join(map(str, list(contents)[:10])) or "nothing"
        raise Mistake(
            f"--checkpoint: {path} has no weights by name under {', '.join(_PLACES[:3])}; it has "
            f"{keys}"
        )
    raise Mistake(
        f"--checkpoint: {path} holds a {type(contents).__name__}; expected what "
        "torch.save(model.state_dict(), path) writes"
    )


def _is_state(value: Any) -> bool:
    # Quantised modules and some norms keep other things beside their tensors.
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return (
        is_mapping
        and any(isinstance(item, Tensor) for item in value.values())
        and all(
            isinstance(item, Tensor) or key.endswith("_extra_state") for key, item in value.items()
        )
    )


def _strip_wrappers(state: dict[str, Tensor], expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Take off what wrappers put before the names, as far as the model has no such names."""
    for wrapper in _WRAPPERS:
        # torch.compile of a part puts it in the middle.
        pattern = re.compile(rf"(?:(?<=^)|(?<=\.)){re.escape(wrapper)}")
        if not any(pattern.search(name) for name in expected):
            state = {pattern.sub("", name): tensor for name, tensor in state.items()}

    for holder in _HOLDERS:
        stripped = {name.removeprefix(holder): tensor for name, tensor in state.items()}
        if len(stripped.keys() & expected.keys()) > len(state.keys() & expected.keys()):
            state = stripped
    return state


def _check_fit(state: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    expected = model.state_dict()
    missing_names = [name for name in expected if name not in state]
    unknown_names = [name for name in state if name not in expected]

    if missing_names or unknown_names:
        raise Mistake(
            f"--checkpoint: {path} does not fit {type(model).__name__}: "
            f"{_list_names(missing_names, unknown_names, expected)}"
        )

    for name, tensor in expected.items():
        if isinstance(tensor, Tensor) and state[name].shape != tensor.shape:
            shape = tuple(state[name].shape)
            expected_shape = tuple(tensor.shape)

            # A last layer for another number of classes is the usual reason.
            cure = ""
            if shape[1:] == expected_shape[1:]:
                cure = f"; if these are its classes, --classes {shape[0]}"
            raise Mistake(
                f"--checkpoint: {path} at {name!r}: the model has {expected_shape}, the file "
                f"{shape}{cure}"
            )


def _list_names(
    missing_names: list[str], unknown_names: list[str], expected: Mapping[str, Any]
) -> str:
    parts = []
    if missing_names:
        parts.append(f"it lacks {_list_some(missing_names)}")
    if unknown_names:
        hint = (
            closest(unknown_names[0], missing_names or expected, n=1) if len(unknown_names) else ""
        )
        parts.append(f"the model has no {_list_some(unknown_names)}{hint}")
    return "; ".join(parts)


def _list_some(names: list[str]) -> str:
    n_more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {n_more} more" if n_more > 0 else "")
