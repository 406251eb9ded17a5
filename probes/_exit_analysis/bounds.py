"""How sure a mean over samples is: tests and bounds behind a threshold's guarantee."""

import math

import numpy as np

# A count is a sum of floats divided by n and multiplied again: 5.000000000001 must not become 6.
_ROUNDING = 1e-9


def risk_p_value(risks: np.ndarray, limit: float, *, binary: bool) -> float:
    """Return the chance of risks this small or smaller if their expectation were above `limit`.

    Args:
        risks: One number from 0 to 1 per independent sample, `(sample,)`.
        limit: The largest risk allowed.
        binary: Whether all risks are 0 or 1: then the binomial distribution is exact; else the
            smaller of the bounds of Hoeffding (in its Kullback-Leibler form) and Bentkus.

    Examples:
        >>> round(risk_p_value(np.zeros(100), 0.03, binary=True), 4)  # 0.97 ** 100
        0.0476
    """
    n = len(risks)
    mean = float(risks.mean())

    if limit <= 0 or mean >= limit:
        return 1.0
    if limit >= 1:
        return 0.0

    # Here, since `import probes` should not wait for all of scipy.stats.
    from scipy.stats import binom

    if binary:
        return float(binom.cdf(round(n * mean), n, limit))

    # Hoeffding: exp(-n * KL(mean || limit)), with 0 ln 0 = 0.
    divergence = (1 - mean) * math.log((1 - mean) / (1 - limit))
    if mean > 0:
        divergence += mean * math.log(mean / limit)
    hoeffding = math.exp(-n * divergence)

    # Bentkus: e * P(Binomial(n, limit) <= ceil(n * mean)).
    bentkus = math.e * float(binom.cdf(math.ceil(n * mean - _ROUNDING), n, limit))
    return min(1.0, hoeffding, bentkus)


def mean_p_value(values: np.ndarray, limit: float) -> float:
    """Return the same for unbounded values, by Student's t, which holds for many samples only."""
    n = len(values)
    if n < 2:
        return 1.0

    gap = float(values.mean()) - limit
    standard_error = float(values.std(ddof=1)) / math.sqrt(n)
    if standard_error == 0:
        return 0.0 if gap < 0 else 1.0

    from scipy.stats import t as student

    return float(student.cdf(gap / standard_error, n - 1))


def rate_bound(counts: np.ndarray, delta: float) -> float:
    """Return how far an exit rate may be from its expectation, at every threshold at once.

    For one token per sample it is the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart. For
    several, the largest gap between the mean of n distribution functions and its expectation is,
    by convexity, no larger in the mean than that of n single tokens, sqrt(pi / 2n), and one sample
    moves it by at most 1/n (McDiarmid). Shorter samples are filled up with tokens that never leave:
    the rate is then a ratio of two such means, of tokens that leave and of all.

    Args:
        counts: Tokens of each sample, `(sample,)`; the longest is as long as any to come.
        delta: The chance that the bound fails.

    Examples:
        >>> round(rate_bound(np.ones(200), 0.05), 3)
        0.096
    """
    n = len(counts)
    longest = counts.max()
    if longest == 1:
        return math.sqrt(math.log(2 / delta) / (2 * n))

    bound = math.sqrt(math.pi / (2 * n)) + math.sqrt(math.log(1 / delta) / (2 * n))
    if counts.min() == longest:
        return bound
    return float(2 * bound * longest / counts.mean())
