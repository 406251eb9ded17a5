"""Which of the images are used, and with which labels: all seeded, none in place."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from lab.data.images import Images


def subset(
    images: Images, per_class: int | None, test_per_class: int | None = None, *, seed: int = 0
) -> Images:
    """Draw so many training (and test) images of each class at random; None keeps all.

    The test images are drawn by a seed of their own, so that all runs share them.

    Raises:
        ValueError: If a class has too few.
    """
    changes = {}
    for name, count, part_seed in (("train", per_class, seed), ("test", test_per_class, 0)):
        if count is None:
            continue

        x, y = images.part(name)
        labels = y.numpy()
        available = np.bincount(labels, minlength=images.classes).min()
        if not 1 <= count <= available:
            raise ValueError(
                f"`per_class`: expected 1 to {available} of the {name} images, got {count}"
            )

        # The first few of each class, in a random order of all images.
        order = np.random.default_rng(part_seed).permutation(len(labels))
        by_class = [order[labels[order] == label][:count] for label in range(images.classes)]
        rows = np.sort(np.concatenate(by_class))
        changes |= {f"x_{name}": x[rows], f"y_{name}": y[rows]}

    return replace(images, **changes)


def hold_out(images: Images, share: float, *, seed: int = 0) -> Images:
    """Put a stratified share of the training images in the place of the test images.

    A search that looks only at these leaves the real test set unseen.
    """
    from sklearn.model_selection import train_test_split

    labels = images.y_train.numpy()
    rows = np.arange(len(labels))
    training_rows, held_rows = train_test_split(
        rows, test_size=share, stratify=labels, random_state=seed
    )
    return replace(
        images,
        x_train=images.x_train[training_rows],
        y_train=images.y_train[training_rows],
        x_test=images.x_train[held_rows],
        y_test=images.y_train[held_rows],
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
    is_flipped = torch.rand(len(labels), generator=generator) < share

    # A shift of 1 to classes - 1, modulo the classes, never leads back to the label itself.
    shift = torch.randint(1, images.classes, (len(labels),), generator=generator)
    noisy_labels = torch.where(is_flipped, (labels + shift) % images.classes, labels)
    return replace(images, y_train=noisy_labels)


def resize(images: Images, size: int | None, channels: int | None = None) -> Images:
    """Bring images to another resolution, and repeat grey ones to so many channels."""
    # Files are resized as they are read.
    if images.size is not None:
        return images if size is None else replace(images, size=size)

    x_train = images.x_train
    x_test = images.x_test
    if size is not None and size != images.image:
        x_train = F.interpolate(x_train, size=size, mode="bilinear")
        x_test = F.interpolate(x_test, size=size, mode="bilinear")
    if channels is not None and images.channels == 1 < channels:
        x_train = x_train.expand(-1, channels, -1, -1)
        x_test = x_test.expand(-1, channels, -1, -1)
    return replace(images, x_train=x_train, x_test=x_test)


def relabel(images: Images, classes: int, *, seed: int = 0) -> Images:
    """Give images labels of another number of classes; those that have it are left as they are.

    More classes: each class is split at random into as many as fit; fewer: neighbouring classes are
    joined. At initialisation a network knows nothing of its labels, so that its loss surface is
    nearly that of real classes, as far as their number decides it.

    Examples:
        >>> import torch
        >>> y = torch.arange(4)
        >>> relabel(Images(torch.zeros(4, 1), y, torch.zeros(4, 1), y), 2).y_train
        tensor([0, 0, 1, 1])
    """
    present = images.classes
    if classes == present:
        return images

    generator = torch.Generator().manual_seed(seed)
    labels = {}
    for name in ("train", "test"):
        y = images.part(name)[1]
        low = y * classes // present
        n_parts = ((y + 1) * classes // present - low).clamp(min=1)
        part = (torch.rand(len(y), generator=generator, dtype=torch.float64) * n_parts).long()
        labels[f"y_{name}"] = low + part
    return replace(images, **labels)
