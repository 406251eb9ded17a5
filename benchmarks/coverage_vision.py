"""Small image and video models of timm and torchvision, with pairs of random images and labels."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.video.mvit import MSBlockConfig, MViT

from coverage_instruments import Case

N_CLASSES = 10
_N_SAMPLES = 3

# More weights than this exceed the machine that the page is made on.
MOST_WEIGHTS = 130_000_000

# Images as small as a model allows: from two strides of a usual network to what papers train on.
_SIZES = (64, 96, 128, 160, 192, 224, 240, 256, 299, 331)

# Modules whose smallest model is large, or slow by its depth: settings that make it smaller.
_SMALL_VIT = {"depth": 2, "embed_dim": 96, "num_heads": 3}
_SHRUNK: dict[str, dict[str, Any]] = {
    "beit": _SMALL_VIT,
    "vision_transformer_sam": _SMALL_VIT,
    "naflexvit": _SMALL_VIT,
    "deepseek_vit": {"depth": 2},
    "gemma4_vit": {"depth": 2},
    "qwen3_vit": {"depth": 2},
    "nasnet": {"num_features": 1056, "stem_size": 24},
    "tnt": {"depth": 2},
    "swin_transformer": {"depths": (1, 1, 2, 1), "embed_dim": 24},
    "swin_transformer_v2": {"depths": (1, 1, 2, 1), "embed_dim": 24},
    "swin_transformer_v2_cr": {"depths": (1, 1, 2, 1), "embed_dim": 24},
    "davit": {"depths": (1, 1, 2, 1)},
}
# Names of members that are no classifiers, or never the smallest.
_ENCODER_WORDS = ("_enc", "_align", "_merge")
_LARGE_WORDS = ("large", "huge", "giant", "enormous", "gigantic", "so400m", "xlarge")

TORCHVISION_CLASSIFIERS = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vit_b_16",
)
TORCHVISION_SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet50",
    "lraspp_mobilenet_v3_large",
)
TORCHVISION_VIDEO = ("mc3_18", "mvit_v1_b", "r2plus1d_18", "r3d_18", "s3d", "swin3d_t")

_TORCHVISION_SETTINGS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False, "aux_logits": False},
}
# Pooling leaves nothing of smaller ones in some; in others, clips of 64 pixels take minutes.
_TORCHVISION_SIZES = {
    "inception_v3": 96,
    "s3d": 224,
    "mc3_18": 32,
    "r2plus1d_18": 32,
    "r3d_18": 32,
    "swin3d_t": 32,
}


class TooLargeError(Exception):
    """A model that exceeds the machine, or that runs at no size of image."""


def smallest_of_module(module: str) -> str:
    """Find the member of a module of timm that has the fewest weights."""
    names = [name for name in timm.list_models(module=module) if not name.endswith(_ENCODER_WORDS)]
    likely_names = [name for name in names if not any(word in name for word in _LARGE_WORDS)]

    n_weights: dict[str, int] = {}
    for name in likely_names or names:
        try:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                n_weights[name] = _count_weights(timm.create_model(name, num_classes=N_CLASSES))
        except (RuntimeError, NotImplementedError):
            # Some compute with values while they are built, which are not there yet.
            continue
    return min(n_weights, key=lambda name: (n_weights[name], name))


def timm_case(name: str, **settings: Any) -> Case:
    """Build a model of timm at the smallest image that it runs on, forward and backward.

    Raises:
        TooLargeError: If it has too many weights, or runs at no size.
    """
    module = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
    settings = _SHRUNK.get(module, {}) | settings
    with torch.device("meta"):
        _check_size(timm.create_model(name, num_classes=N_CLASSES, **settings))

    for size in _SIZES:
        model = _timm_model(name, size, settings)
        if model is None:
            continue

        images, labels = _images(size)
        if _runs(model, images):
            return Case(model, (images, labels))
    raise TooLargeError(f"runs on no image of up to {_SIZES[-1]} pixels")


def torchvision_case(name: str) -> Case:
    """Build a model of torchvision, with images, pixel labels or clips."""
    settings = dict(_TORCHVISION_SETTINGS.get(name, {}))
    size = _TORCHVISION_SIZES.get(name, 64)

    torch.manual_seed(0)
    if name in _SMALL_TORCHVISION:
        model = _SMALL_TORCHVISION[name]()
    else:
        settings |= {"weights_backbone": None} if name in TORCHVISION_SEGMENTATION else {}
        model = torchvision.models.get_model(name, weights=None, num_classes=N_CLASSES, **settings)
    _check_size(model)
    fill_zero_heads(model)

    if name in TORCHVISION_VIDEO:
        n_frames = 16 if name == "s3d" else 8
        clips = torch.randn(_N_SAMPLES, 3, n_frames, size, size)
        return Case(model, (clips, _labels()))

    images, labels = _images(size)
    if name in TORCHVISION_SEGMENTATION:
        labels = torch.randint(N_CLASSES, (_N_SAMPLES, size, size))
        labels[0, :4] = -100
    return Case(model, (images, labels))


def fill_zero_heads(model: nn.Module) -> nn.Module:
    """Draw matrices that are all zero, since nothing comes back through a head of zeros."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.02)
    return model


def _small_mvit() -> nn.Module:
    kernel, one, two = [3, 3, 3], [1, 1, 1], [1, 2, 2]
    blocks = [
        MSBlockConfig(1, 16, 16, kernel, kernel, one, two),
        MSBlockConfig(1, 16, 32, kernel, kernel, one, two),
        MSBlockConfig(2, 32, 32, kernel, kernel, two, one),
    ]
    return MViT(
        (64, 64),
        8,
        blocks,
        residual_pool=False,
        residual_with_cls_embed=True,
        rel_pos_embed=False,
        proj_after_attn=False,
        num_classes=N_CLASSES,
    )


# The classes themselves, small: all that have names are large, or take large images only.
_SMALL_TORCHVISION: dict[str, Callable[[], nn.Module]] = {
    "maxvit_t": lambda: torchvision.models.MaxVit(
        (64, 64), 16, 4, [16, 32], [1, 2], 8, 0.1, num_classes=N_CLASSES
    ),
    "mvit_v1_b": _small_mvit,
    "vit_b_16": lambda: torchvision.models.VisionTransformer(
        64, 16, 2, 2, 32, 64, num_classes=N_CLASSES
    ),
}


def _timm_model(name: str, size: int, settings: dict[str, Any]) -> nn.Module | None:
    """Build a model for images of a size, or for any; None if it does not come in that size."""
    torch.manual_seed(0)
    takes_size = {"img_size": size} | settings
    for arguments in (takes_size, settings):
        try:
            model = timm.create_model(name, num_classes=N_CLASSES, **arguments)
        except TypeError:
            # Convolutions take images of any size, and no such argument.
            continue
        except (AssertionError, ValueError, RuntimeError, ZeroDivisionError, IndexError):
            return None
        return fill_zero_heads(model)
    return None


def _runs(model: nn.Module, images: Tensor) -> bool:
    """Tell whether a model trains and answers on images, apart from any instrument."""
    try:
        torch.manual_seed(0)
        training_model = copy.deepcopy(model).train()
        training_model(images).square().mean().backward()
        with torch.no_grad():
            outputs = copy.deepcopy(model).eval()(images[:1])
    except Exception:
        return False
    return outputs.shape == (1, N_CLASSES) and bool(outputs.isfinite().all())


def _images(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_N_SAMPLES, 3, size, size, generator=generator), _labels()


def _labels() -> Tensor:
    return torch.arange(_N_SAMPLES) % N_CLASSES


def _check_size(model: nn.Module) -> None:
    n_weights = _count_weights(model)
    if n_weights > MOST_WEIGHTS:
        raise TooLargeError(f"{n_weights / 1e6:.0f} million weights")


def _count_weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
