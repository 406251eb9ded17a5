"""Which published set some images are: told by what they are, never by the name of a file."""

from dataclasses import dataclass

import torch

from lab.data.images import Images

# The names of data in scripts, and the sets they stand for.
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet-1k"}

# Published statistics have four digits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class _Fixed:
    """A set whose images lie in memory.

    Attributes:
        shape: Of an image.
        train, test: Images of each class.
        classes: How many.
        means, deviations: Of the channels of the training images, black 0 and white 1.
    """

    shape: tuple[int, int, int]
    train: int
    test: int
    classes: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]


# The statistics by which everybody normalises these two sets.
_FIXED = {
    "CIFAR-10": _Fixed(
        (3, 32, 32), 5000, 1000, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "CIFAR-100": _Fixed(
        (3, 32, 32), 500, 100, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
}


def identify(images: Images) -> str:
    """Return the name of the set that a whole load of images is, or a description of it.

    Args:
        images: As `lab.data.images.load` gives them, nothing left out.

    Examples:
        >>> from lab.data.images import digits
        >>> identify(digits())
        'digits'
    """
    for name, fixed in _FIXED.items():
        if _is_fixed(images, fixed):
            return name

    train_counts, test_counts = (
        torch.bincount(labels, minlength=images.classes)
        for labels in (images.y_train, images.y_test)
    )

    # Files are not opened: ImageNet-1k is known by its numbers of images.
    if images.size is not None:
        has_its_counts = int(train_counts.sum()) == 1_281_167 and bool((test_counts == 50).all())
        return NAMES["imagenet"] if has_its_counts and images.classes == 1000 else "other images"

    shape = tuple(images.x_train.shape[1:])
    if shape == (1, 8, 8) and len(images.y_train) + len(images.y_test) == 1797:
        return "digits"
    size = " x ".join(map(str, shape))
    return f"other images ({len(images.y_train)} of {size}, {images.classes} classes)"


def _is_fixed(images: Images, fixed: _Fixed) -> bool:
    if images.size is not None or tuple(images.x_train.shape[1:]) != fixed.shape:
        return False

    if images.classes != fixed.classes:
        return False

    for labels, count in ((images.y_train, fixed.train), (images.y_test, fixed.test)):
        if not bool((torch.bincount(labels, minlength=fixed.classes) == count).all()):
            return False

    return _are_close(images.channel_means, fixed.means) and _are_close(
        images.channel_deviations, fixed.deviations
    )


def _are_close(values: tuple[float, ...], published: tuple[float, ...]) -> bool:
    return len(values) == len(published) and all(
        abs(value - number) <= _TOLERANCE for value, number in zip(values, published, strict=True)
    )
