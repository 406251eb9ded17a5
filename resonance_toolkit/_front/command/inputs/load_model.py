"""MODEL on the command line, as a module."""

import ast
import contextlib
import difflib
import importlib
import json
from pathlib import Path

import torch

from resonance_toolkit import preserving_rng
from resonance_toolkit._front.command.inputs.checkpoint_file import load_checkpoint
from resonance_toolkit._front.command.inputs.libraries import (
    LoadedModel,
    load_timm,
    load_torchvision,
    load_transformers,
)
from resonance_toolkit._front.command.inputs.own_file import load_from_file
from resonance_toolkit._front.command.mistake import Mistake
from resonance_toolkit._front.command.settings import ModelRequest

FORMS = "timm:NAME, torchvision:NAME, transformers:NAME, a folder, file.py:function or digits"

_LIBRARIES = {
    "timm": load_timm,
    "torchvision": load_torchvision,
    "transformers": load_transformers,
}


def load_model(request: ModelRequest) -> LoadedModel:
    """Load or draw a model; what is drawn is drawn by the seed.

    Raises:
        Mistake: If there is no such model, or its weights do not fit.
    """
    with preserving_rng():
        torch.manual_seed(request.seed)
        loaded = _load_by_form(request)

    if request.checkpoint is None:
        return loaded
    load_checkpoint(loaded.module, request.checkpoint)
    weights = f"weights of {request.checkpoint.name}"
    return LoadedModel(loaded.module, weights, loaded.preparation, loaded.tokenizer)


def _load_by_form(request: ModelRequest) -> LoadedModel:
    library, _, name = request.text.partition(":")
    if library in _LIBRARIES and name:
        return _LIBRARIES[library](name, request)

    if ".py:" in request.text:
        return LoadedModel(load_from_file(request.text), "weights as its code makes them")
    if request.text.endswith(".py"):
        raise Mistake(_say_unnamed(Path(request.text).expanduser()))

    folder = Path(request.text).expanduser()
    if folder.is_dir():
        return _load_folder(folder, request)
    raise Mistake(f"MODEL: expected {FORMS}, got {request.text!r}{_suggest_name(request.text)}")


def _suggest_name(text: str) -> str:
    """Find what a word may have been meant to be: a library's model, or its prefix with a slip."""
    library, separator, name = text.partition(":")
    if separator:
        similar = difflib.get_close_matches(library, list(_LIBRARIES), n=1)
        return f"; did you mean {similar[0]}:{name}?" if similar and name else ""
    if difflib.get_close_matches(text, ["digits"]):
        return "; did you mean digits?"

    suggestions = []
    for module_name in ("timm", "torchvision"):
        with contextlib.suppress(ImportError):
            listed = importlib.import_module(f"{module_name}.models").list_models()
            suggestions += [f"{module_name}:{text}"] if text in listed else []
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def _load_folder(folder: Path, request: ModelRequest) -> LoadedModel:
    path = folder / "config.json"
    if not path.is_file():
        raise Mistake(
            f"MODEL: the folder {folder} has no config.json; expected what save_pretrained of "
            "transformers wrote, or a folder in timm's form"
        )

    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Mistake(f"MODEL: {path} is not JSON: {error}") from error

    if isinstance(config, dict) and "architecture" in config and "model_type" not in config:
        return load_timm(f"local-dir:{folder}", request)
    return load_transformers(str(folder), request)


def _say_unnamed(path: Path) -> str:
    if not path.is_file():
        return f"MODEL: no file {path}"

    # Read, not run: nobody has said yet what to call.
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        names = []
    else:
        kinds = (ast.FunctionDef, ast.ClassDef)
        names = [node.name for node in tree.body if isinstance(node, kinds)]
    choice = f"; it has {', '.join(names[:10])}" if names else ""
    return f"MODEL: say which function or class of {path} makes the model: {path}:NAME{choice}"
