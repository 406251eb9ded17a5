"""How large each part is made, so that all of them together keep the budget.

Each part has a share of the seconds; what a pass costs was measured. From both follow the numbers
of samples, points, products and updates. A plan is made once and kept in the checkpoint, so that a
run that continues after a kill measures what the first one would have measured.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from resonance_toolkit import count_samples
from resonance_toolkit._front.examine.cost import Cost
from resonance_toolkit._front.examine.settings import Settings
from resonance_toolkit._front.examine.subject import MOST_SAMPLES, Subject

# Of the seconds, by part; those of parts that are not asked for go to the others.
_SHARES = {
    "model": 0.02,
    "response": 0.5,
    "gradients": 0.06,
    "landscape": 0.2,
    "curvature": 0.12,
    "attention": 0.03,
    "nudging": 0.07,
}

BATCH_SIZE = 32

# Held-out samples and samples to train on, at most: more would take memory, not time.
_MOST_HELD_OUT = 256
_MOST_TRAINED = 2048
_MOST_BYTES = 2**29
_FEWEST_HELD_OUT = 16
_FEWEST_TRAINED = 128

# (seeds, updates), the best first. Intervals over fewer than five seeds are wide; fewer updates
# than some hundred say little about training.
_EXPERIMENTS = (
    (10, 2000),
    (10, 1000),
    (8, 600),
    (8, 400),
    (6, 300),
    (5, 300),
    (5, 200),
    (4, 150),
    (4, 100),
    (3, 100),
    (3, 60),
    (3, 40),
    (3, 25),
    (2, 25),
    (2, 15),
    (2, 8),
    (1, 8),
)
_N_MEASUREMENTS = 8
_N_TRACED = 20

# Points along each axis of the surface. Of many points an adaptive surface evaluates about half at
# most, of few all.
_SIZES = (51, 41, 31, 25, 21, 15, 11, 9, 7, 5)
_EVALUATED_SHARE = 0.5
_ALL_ARE_EVALUATED = 25
_SMALL_SIZES = (15, 11, 9, 7, 5)

# Below so many samples a surface is that of a few samples; a finer one of those says less.
_ENOUGH_SAMPLES = 128
_FEWEST_SAMPLES = 8

# Eigenvalues, products for them, for the trace, and Lanczos steps of the density; the best first.
_SPECTRA = ((5, 120, 30, 40), (5, 80, 20, 40), (3, 40, 10, 20), (1, 20, 5, 10))

# Products with the Hessian, in forward-and-backward passes.
_PASSES_OF_A_PRODUCT = 1.2
# Orthogonalising a product against the Krylov basis, in operations on vectors.
_VECTORS_OF_A_PRODUCT = 60

_N_DIRECTIONS = 8


@dataclass(frozen=True)
class Plan:
    """Sizes by part, and the seconds that each part was given and will probably take."""

    sizes: dict[str, dict[str, int]]
    shares: dict[str, float]
    estimates: dict[str, float]

    @property
    def percents(self) -> dict[str, int]:
        """What each part is of the whole, by which progress is shown."""
        total = sum(self.estimates.values()) or 1.0
        seconds_so_far = np.cumsum(list(self.estimates.values()))
        edges = np.rint(100 * seconds_so_far / total).astype(int)
        return dict(zip(self.estimates, np.diff(edges, prepend=0).tolist(), strict=True))

    def as_numbers(self) -> dict[str, Any]:
        """For a file."""
        return {"sizes": self.sizes, "shares": self.shares, "estimates": self.estimates}


def make_plan(subject: Subject, cost: Cost, n_layers: int, parts: Iterable[str]) -> Plan:
    """Choose the sizes of all parts.

    Args:
        subject: What is examined.
        cost: What passes take.
        n_layers: Blocks that will be nudged.
        parts: Those that were asked for.
    """
    settings = subject.settings
    part_names = list(parts)
    total = sum(_SHARES[part] for part in part_names)
    shares = {part: settings.budget_seconds * _SHARES[part] / total for part in part_names}
    samples = subject.count(settings.samples or MOST_SAMPLES)

    planners = {
        "model": lambda seconds: _plan_model(seconds, cost, samples),
        "response": lambda seconds: _plan_response(seconds, cost, subject),
        "gradients": lambda seconds: _plan_gradients(seconds, cost, samples, settings),
        "landscape": lambda seconds: _plan_landscape(seconds, cost, samples),
        "curvature": lambda seconds: _plan_curvature(seconds, cost, samples),
        "attention": lambda seconds: _plan_attention(seconds, cost, samples),
        "nudging": lambda seconds: _plan_nudging(seconds, cost, samples, n_layers),
    }
    sizes: dict[str, dict[str, int]] = {}
    estimates: dict[str, float] = {}
    for part in part_names:
        sizes[part], estimates[part] = planners[part](shares[part])
    return Plan(sizes, shares, estimates)


def _plan_model(seconds: float, cost: Cost, samples: int) -> tuple[dict[str, int], float]:
    per_sample = cost.forward + cost.draw
    n_samples = _fit(seconds, per_sample, samples)

    # Shapes, operations, seconds and the meaning of targets take a pass each.
    batch_size = min(n_samples, max(_FEWEST_SAMPLES // 2, n_samples // 8), BATCH_SIZE)
    seconds = n_samples * per_sample + 4 * (cost.overhead + batch_size * cost.forward)
    return {"samples": n_samples, "batch_size": batch_size}, seconds


def _plan_response(seconds: float, cost: Cost, subject: Subject) -> tuple[dict[str, int], float]:
    settings = subject.settings
    batch_size = settings.batch_size or BATCH_SIZE

    # The pool must hold what is trained on and what is held out, in memory.
    bytes_of_sample = _bytes_of_sample(subject)
    most = max(2, min(_MOST_TRAINED + _MOST_HELD_OUT, _MOST_BYTES // bytes_of_sample))
    if settings.samples is None and subject.n_available < MOST_SAMPLES:
        most = min(most, subject.n_available)

    updates = [cost.plain_update, cost.branch_update]
    pair = sum(seconds for seconds in updates if not math.isnan(seconds))
    copies = 0.0 if math.isnan(cost.copy) else 2 * cost.copy

    def size_of_pool(n_held_out: int) -> int:
        n_trained = n_held_out * _MOST_TRAINED // _MOST_HELD_OUT
        return min(most, n_held_out + max(n_trained, _FEWEST_TRAINED))

    def seconds_around(n_held_out: int) -> float:
        """The held-out samples are measured, and heads are fitted that only listen."""
        n_fitted = size_of_pool(n_held_out)
        return copies + 2 * cost.forward * (n_held_out * (_N_MEASUREMENTS + 2) + n_fitted)

    n_held_out = min(_MOST_HELD_OUT, max(1, most // 4))
    if isinstance(settings.held_out, Integral):
        n_held_out = int(settings.held_out)
    else:
        # Large models measure on fewer.
        while seconds_around(n_held_out) > seconds / 8 and n_held_out > _FEWEST_HELD_OUT:
            n_held_out = max(n_held_out // 2, _FEWEST_HELD_OUT)
    pool = size_of_pool(n_held_out)
    around = seconds_around(n_held_out)

    n_seeds, steps = _choose_experiment(seconds, pair, around, settings)
    sizes = {
        "seeds": n_seeds,
        "steps": steps,
        "batch_size": batch_size,
        "pool": pool,
        "held_out": n_held_out,
        "trace_every": max(1, steps // _N_TRACED),
        "measurements": _N_MEASUREMENTS,
    }
    return sizes, n_seeds * (steps * pair + around) + pool * cost.draw


def _choose_experiment(
    seconds: float, pair: float, around: float, settings: Settings
) -> tuple[int, int]:
    for n_seeds, steps in _EXPERIMENTS:
        chosen_steps = settings.steps or steps
        chosen_seeds = settings.seeds or n_seeds
        if chosen_seeds * (chosen_steps * pair + around) <= seconds:
            return chosen_seeds, chosen_steps

    # The least that is an experiment; whether there is time for it, the clock will tell.
    n_seeds, steps = _EXPERIMENTS[-1]
    return settings.seeds or n_seeds, settings.steps or steps


def _plan_gradients(
    seconds: float, cost: Cost, samples: int, settings: Settings
) -> tuple[dict[str, int], float]:
    # The gradients of both losses, and their sum.
    per_sample = 3 * cost.gradient + cost.draw
    n_samples = _fit(seconds, per_sample, samples)

    batch_size = min(settings.batch_size or BATCH_SIZE, max(1, n_samples // 2))
    n_batches = min(10, max(2, n_samples // batch_size))
    n_samples = min(samples, n_batches * batch_size)
    return {"samples": n_samples, "batch_size": batch_size}, n_samples * per_sample


def _plan_landscape(seconds: float, cost: Cost, samples: int) -> tuple[dict[str, int], float]:
    size, n_samples = _fit_surface(0.6 * seconds, cost, samples, _SIZES)

    # Two planes: with branches and without.
    small_size, n_few = _fit_surface(0.2 * seconds, cost, n_samples, _SMALL_SIZES)
    sizes = {
        "size": size,
        "samples": n_samples,
        "dilution_size": small_size,
        "dilution_samples": n_few,
    }
    n_points = _count_points(size)
    n_small = 2 * _count_points(small_size)
    passes = n_points * n_samples + n_small * n_few
    per_point = cost.overhead + 4 * cost.vector
    return sizes, passes * cost.forward + (n_points + n_small) * per_point


def _fit_surface(
    seconds: float, cost: Cost, samples: int, sizes: tuple[int, ...]
) -> tuple[int, int]:
    """The finest surface for which there are enough samples, and how many."""
    n_samples = 0
    for size in sizes:
        seconds_of_point = seconds / _count_points(size) - cost.overhead - 4 * cost.vector
        n_samples = min(samples, math.floor(seconds_of_point / max(cost.forward, 1e-9)))
        if n_samples >= min(_ENOUGH_SAMPLES, samples):
            return size, n_samples
    return sizes[-1], max(n_samples, min(_FEWEST_SAMPLES, samples))


def _count_points(size: int) -> float:
    """How many points of a surface are evaluated."""
    return size**2 if size <= _ALL_ARE_EVALUATED else _EVALUATED_SHARE * size**2


def _plan_curvature(seconds: float, cost: Cost, samples: int) -> tuple[dict[str, int], float]:
    per_sample = _PASSES_OF_A_PRODUCT * cost.gradient
    per_product = _VECTORS_OF_A_PRODUCT * cost.vector + 8 * cost.overhead
    for spectrum in _SPECTRA:
        k, most_products, trace_probes, density_steps = spectrum
        n_products = most_products + trace_probes + density_steps
        seconds_of_passes = 0.8 * seconds / n_products - per_product
        n_samples = min(samples, math.floor(seconds_of_passes / max(per_sample, 1e-9)))
        if n_samples >= min(_ENOUGH_SAMPLES // 2, samples):
            break

    n_samples = max(n_samples, min(_FEWEST_SAMPLES, samples))
    sizes = {
        "samples": n_samples,
        "k": k,
        "max_products": most_products,
        "trace_probes": trace_probes,
        "density_steps": density_steps,
    }
    products = n_products * (n_samples * per_sample + per_product)
    return sizes, products + n_samples * (cost.gradient + 10 * cost.forward)


def _plan_attention(seconds: float, cost: Cost, samples: int) -> tuple[dict[str, int], float]:
    # Both verbs multiply attention out, and read it back.
    per_sample = 12 * cost.forward + cost.draw
    n_samples = min(128, _fit(seconds, per_sample, samples))
    return {"samples": n_samples}, n_samples * per_sample


def _plan_nudging(
    seconds: float, cost: Cost, samples: int, n_layers: int
) -> tuple[dict[str, int], float]:
    # Three credits; what follows each block is run again, in all half of the model as often.
    passes = (n_layers + 1) / 2
    nudging = 3 * (cost.forward * (passes + 1) + 2 * cost.gradient)
    measuring = nudging * 2 + 3 * 2 * cost.forward * passes * _N_DIRECTIONS
    # To record a pass, module by module, and to check its replay costs as much as some tens.
    overhead = 3 * cost.overhead * (2 * passes + 30)
    seconds -= overhead

    # All measures of a credit, if they are for enough samples; else the first of them.
    n_samples = _fit(seconds, measuring, samples)
    if n_samples >= min(_ENOUGH_SAMPLES // 2, samples) and n_samples * measuring <= seconds:
        n_samples = min(n_samples, 256)
        return {"samples": n_samples, "directions": _N_DIRECTIONS}, n_samples * measuring + overhead

    n_samples = min(_fit(seconds, nudging, samples), 256)
    return {"samples": n_samples, "directions": 0}, n_samples * nudging + overhead


def _fit(seconds: float, per_sample: float, samples: int) -> int:
    """How many samples there is time for: few at least, all at most."""
    n_samples = math.floor(seconds / max(per_sample, 1e-9))
    return min(samples, max(n_samples, _FEWEST_SAMPLES))


def _bytes_of_sample(subject: Subject) -> int:
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(subject.few) if isinstance(leaf, Tensor)]
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return max(1, n_bytes // count_samples(subject.few))
