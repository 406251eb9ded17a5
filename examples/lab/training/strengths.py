"""The strengths that the paper's searches chose, by backbone and number of branches."""

import math

# Table 15: alpha and weight decay; the ten-point grid on CIFAR-100.
TABLE_15 = {
    1: {"mlp": (100.0, 0.001), "cnn": (100.0, 0.01), "vit6": (4.642, 0.1)},
    7: {"mlp": (0.1, 0.001), "cnn": (0.1, 0.001), "vit6": (4.642, 0.01)},
    10: {"mlp": (0.1, 0.001), "cnn": (1.0, 0.001), "vit6": (4.642, 0.01)},
    20: {"mlp": (0.1, 0.001), "cnn": (0.1, 0.001), "vit6": (1.0, 0.01)},
}

# Table 26: CoAtNet-CIFAR, by the stage that has the branches.
TABLE_26 = {
    "s2": {1: 4.642, 20: 0.215, 100: 0.1, 300: 0.1},
    "s3": {1: 21.544, 20: 4.642, 100: 4.642, 300: 0.1},
}

# Tables 16 to 19: seeds 42 to 45, the search in two stages on ImageNet-1k.
TABLES_16_TO_19 = {
    "resnet18": {
        1: (0.0178, 0.0042, 0.0178, 0.0032),
        10: (0.2371, 0.5623, 0.2371, 0.0422),
        20: (0.0237, 0.2371, 0.0178, 0.1778),
    },
    "resnet50": {
        1: (0.0750, 5.6234, 0.5623, 17.7828),
        10: (0.0042, 0.0750, 0.0042, 0.0042),
        20: (0.0178, 0.1000, 0.0316, 0.0237),
    },
    "vit_small": {
        1: (23.7137, 31.6228, 31.6228, 31.6228),
        10: (0.0237, 0.0316, 0.0133, 0.0133),
        20: (0.0237, 0.0056, 0.0042, 0.0422),
    },
    "vit_base": {
        1: (23.7137, 23.7137, 31.6228, 31.6228),
        10: (0.0237, 0.0316, 0.0237, 0.0237),
        20: (0.0042, 0.0316, 0.0178, 0.0237),
    },
}


def published_strengths(backbone: str) -> dict[int, tuple[float, ...]]:
    """Return, by number of branches, one strength for all seeds, or one for each of seeds 42 to 45.

    A CoAtNet's are those of branches at S3.

    Examples:
        >>> published_strengths("cnn")
        {1: (100.0,), 7: (0.1,), 10: (1.0,), 20: (0.1,)}
        >>> published_strengths("resnet18")[20]
        (0.0237, 0.2371, 0.0178, 0.1778)
    """
    if backbone in TABLES_16_TO_19:
        return dict(TABLES_16_TO_19[backbone])

    if backbone == "coatnet":
        return {n: (alpha,) for n, alpha in TABLE_26["s3"].items()}

    return {n: (alpha_and_decay[backbone][0],) for n, alpha_and_decay in TABLE_15.items()}


def rescale_strength(alpha: float, *, classes: int, found_with: int = 100) -> float:
    """Carry a strength over to data with another number of classes.

    A branch's loss is the mean of C sigmoid losses. With logits near 0, as they are at first, its
    gradient with respect to a logit is `(1/2 - y) / C`, whose norm over the C logits is
    `C * (1 / (2 C))**2` under a root: `1 / (2 sqrt(C))`. The rows of a branch are orthonormal, so
    that is also the norm of what reaches the features. To push as hard with other classes, alpha
    goes by the root of their number: one found with 100 is `sqrt(10)`, 3.2 times, too strong with
    10. (The part of the gradient that carries the label, `y / C`, is then still 3.2 times as
    strong: with `1 / C` it goes by the number itself, and no single alpha keeps both.)

    Args:
        alpha: The strength that a search found.
        classes: Of the data where it is to be used.
        found_with: Classes of the data where it was found.

    Returns:
        The strength, to three digits.

    Examples:
        >>> rescale_strength(1.0, classes=10), rescale_strength(4.642, classes=100)
        (0.316, 4.642)
    """
    if classes == found_with:
        return alpha
    return float(f"{alpha * math.sqrt(classes / found_with):.3g}")
