"""Models by name, from timm, torchvision and transformers, and from folders that these wrote."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from resonance_toolkit._front.command.mistake import Mistake, closest, first_line
from resonance_toolkit._front.command.settings import ModelRequest, Preparation

# What torchvision's classifiers were trained with.
IMAGENET = Preparation(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class LoadedModel:
    """A model, how its images are prepared, and the folder that may have its tokenizer."""

    module: nn.Module
    weights: str  # where they come from, in words
    preparation: Preparation = field(default_factory=Preparation)
    tokenizer: str | Path | None = None


def load_timm(name: str, request: ModelRequest) -> LoadedModel:
    """Make a model of timm's, for the data's classes, channels and size.

    Raises:
        Mistake: If timm has no such model, or cannot make it so.
    """
    timm = _import_library("timm", "examples")
    architecture = name.partition(".")[0]
    names = timm.list_models()
    if not name.startswith("local-dir:") and architecture not in names:
        raise Mistake(f"MODEL: timm has no {name!r}{closest(architecture, names)}")

    settings: dict[str, Any] = {}
    if request.n_classes is not None:
        settings["num_classes"] = request.n_classes
    if request.channels is not None:
        settings["in_chans"] = request.channels
    has_fixed_size = getattr(
        timm.models.get_pretrained_cfg(architecture), "fixed_input_size", False
    )
    if request.image_size is not None and has_fixed_size:
        settings["img_size"] = request.image_size

    is_pretrained = request.is_pretrained or name.startswith("local-dir:")
    try:
        module = timm.create_model(name, pretrained=is_pretrained, **settings)
    except Exception as error:  # timm and what it calls raise whatever they like
        listing = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise Mistake(f"MODEL: timm cannot make {name} ({listing}): {first_line(error)}") from error

    config = timm.data.resolve_model_data_config(module)
    size = config["input_size"][-1]
    preparation = Preparation(size, tuple(config["mean"]), tuple(config["std"]))
    return LoadedModel(module, _say_weights(request), preparation)


def load_torchvision(name: str, request: ModelRequest) -> LoadedModel:
    """Make a model of torchvision's, for the data's classes.

    Raises:
        Mistake: If torchvision has no such model, or cannot make it so.
    """
    torchvision = _import_library("torchvision", "examples")
    names = torchvision.models.list_models()
    if name.lower() not in names:
        raise Mistake(f"MODEL: torchvision has no {name!r}{closest(name, names)}")

    # With its weights a model has the 1000 classes of ImageNet.
    settings: dict[str, Any] = {}
    if request.n_classes is not None and not request.is_pretrained:
        settings["num_classes"] = request.n_classes
    if request.image_size is not None and name.startswith("vit_"):
        settings["image_size"] = request.image_size

    weights = "DEFAULT" if request.is_pretrained else None
    try:
        module = torchvision.models.get_model(name, weights=weights, **settings)
    except Exception as error:
        listing = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise Mistake(
            f"MODEL: torchvision cannot make {name} ({listing}): {first_line(error)}"
        ) from error
    return LoadedModel(module, _say_weights(request), IMAGENET)


def load_transformers(name: str, request: ModelRequest) -> LoadedModel:
    """Load a model of transformers', from a folder or from what was downloaded before.

    A folder may have weights, or a configuration only: then weights are drawn. No code of the
    folder's is run, and nothing is downloaded.

    Raises:
        Mistake: If it is not there, or cannot be loaded.
    """
    transformers = _import_library("transformers", "transformers")
    path = Path(name).expanduser()
    is_folder = path.is_dir()
    place = str(path) if is_folder else name

    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError) as error:
        raise Mistake(_say_not_there(name, is_folder, error)) from error

    if request.n_classes is not None and not request.is_about_text:
        _set_classes(config, request.n_classes)
    model_class = _class_of(config, transformers, request)

    has_weights = not is_folder or any(_weight_files(path))
    try:
        if has_weights:
            module = model_class.from_pretrained(
                place,
                config=config,
                local_files_only=True,
                weights_only=True,
                # Another number of classes gives a new head, as a fine-tuning user expects.
                ignore_mismatched_sizes=request.n_classes is not None,
            )
        else:
            module = model_class(config)
    except Exception as error:
        raise Mistake(f"MODEL: {name} cannot be loaded: {first_line(error)}") from error

    weights = f"weights of {name}" if has_weights else f"initial weights (seed {request.seed})"
    return LoadedModel(module, weights, _read_preparation(path), place)


def _weight_files(folder: Path) -> list[Path]:
    return [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]


def _set_classes(config: Any, n_classes: int) -> None:
    # Only where the labels do not count as many already: a new number forgets their names.
    if getattr(config, "num_labels", None) != n_classes:
        config.num_labels = n_classes


def _class_of(config: Any, transformers: Any, request: ModelRequest) -> Any:
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)

    # A configuration that was never saved with a model names no class.
    task = "AutoModelForCausalLM" if request.is_about_text else "AutoModelForImageClassification"
    automatic = getattr(transformers, task)
    if type(config) not in automatic._model_mapping:
        raise Mistake(
            f"MODEL: {type(config).__name__} names no architecture in config.json, and is none of "
            f"{task}'s"
        )
    return automatic._model_mapping[type(config)]


def _read_preparation(folder: Path) -> Preparation:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return Preparation()

    settings = json.loads(path.read_text(encoding="utf-8"))
    size = settings.get("crop_size") or settings.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    mean = settings.get("image_mean")
    std = settings.get("image_std")
    return Preparation(
        int(size) if size else None,
        tuple(mean) if isinstance(mean, list) else None,
        tuple(std) if isinstance(std, list) else None,
    )


def _say_not_there(name: str, is_folder: bool, error: Exception) -> str:
    if is_folder:
        return f"MODEL: {name} is not a folder of transformers: {first_line(error)}"
    return (
        f"MODEL: {name!r} is neither a local folder nor a model that transformers has downloaded, "
        f"and nothing is downloaded here; get it once by `hf download {name}`, or give a folder "
        "that save_pretrained wrote"
    )


def _say_weights(request: ModelRequest) -> str:
    if request.is_pretrained:
        return "published weights"
    return f"initial weights (seed {request.seed})"


def _import_library(name: str, extra: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise Mistake(
            f"MODEL: {name}: needs {name}, which is not installed; run: "
            f"pip install 'resonance-toolkit[{extra}]'"
        ) from error
