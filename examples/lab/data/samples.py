"""Which of the images are used, and with which labels: all seeded, none in place."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from lab.data.images import Images


def subset(
    images: Images, per_class: int | None, test_per_class: int | None = None, *, seed: int = 0
) -> Images:
    """So many training (and test) images of each class, drawn at random; None keeps all.

    The test images are drawn by a seed of their own, so that all runs share them.

    Raises:
        ValueError: If a class has too few.
    """
    parts = {}
    for name, k, draw in (("train", per_class, seed), ("test", test_per_class, 0)):
        if k is None:
            continue
        labels = getattr(images, f"y_{name}").numpy()
        counts = np.bincount(labels, minlength=images.classes)
        if not 1 <= k <= counts.min():
            raise ValueError(
                f"`per_class`: expected 1 to {counts.min()} of the {name} images, got {k}"
            )
        order = np.random.default_rng(draw).permutation(len(labels))
        rows = np.sort(np.concatenate([order[labels[order] == c][:k] for c in range(len(counts))]))
        parts[f"x_{name}"] = getattr(images, f"x_{name}")[rows]
        parts[f"y_{name}"] = getattr(images, f"y_{name}")[rows]
    return replace(images, **parts)


def hold_out(images: Images, share: float, *, seed: int = 0) -> Images:
    """Put a stratified share of the training images in the place of the test images.

    A search that looks only at these leaves the real test set unseen.
    """
    from sklearn.model_selection import train_test_split

    labels = images.y_train.numpy()
    rows = np.arange(len(labels))
    kept, held = train_test_split(rows, test_size=share, stratify=labels, random_state=seed)
    return replace(
        images,
        x_train=images.x_train[kept],
        y_train=images.y_train[kept],
        x_test=images.x_train[held],
        y_test=images.y_train[held],
    )


def corrupt(images: Images, share: float, *, seed: int = 0) -> Images:
    """Flip each training label with probability `share`, to any other class alike.

    A flipped label is always wrong: at 90 % with ten classes, labels say nothing (10 % are right),
    which is where the published accuracies are at chance. Test labels stay.

    Raises:
        ValueError: If `share` is not a probability.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`label_noise`: expected a probability, got {share!r}")
    generator = torch.Generator().manual_seed(seed)
    labels = images.y_train
    flipped = torch.rand(len(labels), generator=generator) < share
    shift = torch.randint(1, images.classes, (len(labels),), generator=generator)
    noisy = torch.where(flipped, (labels + shift) % images.classes, labels)
    return replace(images, y_train=noisy)


def resize(images: Images, size: int | None, channels: int | None = None) -> Images:
    """Images at another resolution, grey ones repeated to so many channels."""
    if images.size is not None:
        return images if size is None else replace(images, size=size)
    parts = {"x_train": images.x_train, "x_test": images.x_test}
    if size is not None and size != images.image:
        parts = {k: F.interpolate(x, size=size, mode="bilinear") for k, x in parts.items()}
    if channels is not None and images.channels == 1 < channels:
        parts = {k: x.expand(-1, channels, -1, -1) for k, x in parts.items()}
    return replace(images, **parts)
