import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri


def share_interval(
    share: ArrayLike, n: ArrayLike, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Wilson's interval of a share of `n` independent trials; NaN where `share` is.

    Unlike `share +- z * error` it stays within 0 and 1, and is no point where the share is 0 or 1.

    Examples:
        >>> low, high = share_interval(1.0, 4, 0.95)  # 1 / (1 + z^2 / 4) with z = 1.96
        >>> round(float(low), 3), round(float(high), 3)
        (0.51, 1.0)
    """
    share = np.asarray(share, dtype=np.float64)
    n = np.asarray(n, dtype=np.float64)

    # Divided by z^2, which is infinite for a level of 1: the interval is 0 to 1 then.
    weight = n / float(ndtri((1 + level) / 2)) ** 2
    centre = (weight * share + 0.5) / (weight + 1)
    margin = np.sqrt(weight * share * (1 - share) + 0.25) / (weight + 1)
    return np.clip(centre - margin, 0, 1), np.clip(centre + margin, 0, 1)
