"""Linear heads with a bias, fitted to rows of features and targets at once instead of by steps.

`RidgeFit` adds up the normal equations batch by batch, in float64, and keeps nothing else:
`width^2 + width * classes` numbers however many rows there are. `LogisticFit` keeps the rows, since
its optimum has no closed form. Both give a weight `(class, width + 1)`, whose last column is the
bias.
"""

from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from probes._branches.potentials import LossName
from probes._branches.targets import as_distribution
from resonance_toolkit import widest_float

FitMethod = Literal["ridge", "logistic"]

# Normal equations of more features than these take more than 2 GB.
WIDEST_RIDGE = 2**14

# Rows whose logits are made at once: memory for logits stays small beside that for features.
_ROWS_AT_ONCE = 2**14

# Of L-BFGS. It stops at a gradient a millionth of the first one, mostly after some tens of steps.
_MOST_ITERATIONS = 2000
_RELATIVE_GRADIENT = 1e-6
_MEMORY = 20


class LinearFit(Protocol):
    """Takes rows `(row, width)` and their targets, as often as there are some; then solves."""

    n_rows: int

    def add(self, rows: Tensor, row_targets: Tensor) -> None:
        """Take rows and their targets: class indices `(row,)`, or numbers `(row, class)`."""

    def solve(self) -> Tensor:
        """Return the weight `(class, width + 1)`, in float64 on the CPU; NaN for rows with NaN."""


class RidgeFit:
    """Least squares to one-hot targets: `sum |target - W h - b|^2 + penalty * |W|^2`.

    The features are shifted by the mean of the first rows, so that a mean far from 0 costs no
    digits; the shift returns in the bias.
    """

    def __init__(self, classes: int, penalty: float) -> None:
        self.classes = classes
        self.penalty = penalty
        self.n_rows = 0

    def add(self, rows: Tensor, row_targets: Tensor) -> None:
        """Add what the normal equations need of some rows."""
        if not len(rows):
            return
        x = _as_double(rows)
        y = as_distribution(row_targets.to(x.device), self.classes, x.dtype)

        if self.n_rows == 0:
            width = x.shape[1]
            self.shift = x.mean(0)
            self.sum_x, self.sum_y = x.new_zeros(width), x.new_zeros(self.classes)
            self.x_x, self.x_y = x.new_zeros(width, width), x.new_zeros(width, self.classes)

        x = x - self.shift
        self.sum_x += x.sum(0)
        self.sum_y += y.sum(0)
        self.x_x.addmm_(x.mT, x)
        self.x_y.addmm_(x.mT, y)
        self.n_rows += len(x)

    def solve(self) -> Tensor:
        """Solve the normal equations of centred features, which have no bias."""
        mean_x, mean_y = self.sum_x / self.n_rows, self.sum_y / self.n_rows
        covariance = self.x_x - self.n_rows * torch.outer(mean_x, mean_x)
        product = self.x_y - self.n_rows * torch.outer(mean_x, mean_y)
        covariance.diagonal().add_(self.penalty)
        if not bool(covariance.isfinite().all() & product.isfinite().all()):
            return covariance.new_full((self.classes, len(mean_x) + 1), torch.nan).cpu()

        factor, failure = torch.linalg.cholesky_ex(covariance)
        if int(failure) == 0 and self.penalty > 0:
            weight = torch.cholesky_solve(product, factor).mT
        else:
            # Features that depend on each other, without a penalty: the smallest of the solutions.
            weight = (torch.linalg.pinv(covariance, hermitian=True) @ product).mT

        bias = mean_y - weight @ (mean_x + self.shift)
        return torch.cat([weight, bias[:, None]], 1).cpu()


class LogisticFit:
    """The branches' own loss with a penalty: `sum over rows of loss + penalty / 2 * |W|^2`.

    `"ce"` is multinomial logistic regression, `"bce"` one binary one for each class, summed over
    classes. Found by L-BFGS on features scaled to mean 0 and variance 1, with the penalty on the
    weights of the unscaled ones: the same optimum, sooner.
    """

    def __init__(self, classes: int, penalty: float, loss: LossName) -> None:
        self.classes = classes
        self.penalty = penalty
        self.loss = loss
        self.n_rows = 0
        self.rows: list[Tensor] = []
        self.targets: list[Tensor] = []

    def add(self, rows: Tensor, row_targets: Tensor) -> None:
        """Keep rows, in their own precision."""
        self.rows.append(rows.cpu())
        self.targets.append(row_targets.cpu())
        self.n_rows += len(rows)

    def solve(self) -> Tensor:
        """Minimise the loss from a weight of zeros."""
        x, y = torch.cat(self.rows).double(), torch.cat(self.targets)
        mean, deviation = x.mean(0), x.std(0, correction=0)
        if not bool(deviation.isfinite().all()):
            return x.new_full((self.classes, x.shape[1] + 1), torch.nan)

        # What does not vary carries nothing, and is not blown up: its weight stays 0.
        scale = torch.where(deviation > 1e-12 * mean.abs(), deviation, torch.inf)
        x = (x - mean) / scale
        shape = (self.classes, x.shape[1] + 1)

        def evaluate(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            value, gradient = self._loss_and_gradient(
                torch.from_numpy(vector).view(shape), x, y, scale
            )
            return value / self.n_rows, (gradient / self.n_rows).flatten().numpy()

        # Here, since `import probes` should not wait for all of scipy.optimize.
        from scipy.optimize import minimize

        start = np.zeros(shape[0] * shape[1])
        first_gradient = float(np.abs(evaluate(start)[1]).max())
        optimum = minimize(
            evaluate,
            start,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": _MOST_ITERATIONS,
                "maxfun": 2 * _MOST_ITERATIONS,
                "maxcor": _MEMORY,
                "gtol": _RELATIVE_GRADIENT * first_gradient,
                "ftol": 0.0,
            },
        )
        solution = torch.from_numpy(optimum.x).view(shape)

        weight = solution[:, :-1] / scale
        bias = solution[:, -1] - weight @ mean
        return torch.cat([weight, bias[:, None]], 1)

    def _loss_and_gradient(
        self, weight: Tensor, x: Tensor, y: Tensor, scale: Tensor
    ) -> tuple[float, Tensor]:
        slopes, bias = weight[:, :-1], weight[:, -1]
        unscaled_slopes = slopes / scale
        value = self.penalty / 2 * float(unscaled_slopes.square().sum())
        gradient = torch.cat(
            [self.penalty * unscaled_slopes / scale, torch.zeros_like(bias)[:, None]], 1
        )

        for rows, row_targets in zip(x.split(_ROWS_AT_ONCE), y.split(_ROWS_AT_ONCE), strict=True):
            targets = as_distribution(row_targets, self.classes, torch.float64)
            logits = rows @ slopes.mT + bias

            if self.loss == "ce":
                log_shares = logits.log_softmax(1)
                value -= float((targets * log_shares).sum())
                error = log_shares.exp() * targets.sum(1, keepdim=True) - targets
            else:
                value += float(F.softplus(logits).sum() - (targets * logits).sum())
                error = logits.sigmoid() - targets

            gradient[:, :-1] += error.mT @ rows
            gradient[:, -1] += error.sum(0)
        return value, gradient


def _as_double(rows: Tensor) -> Tensor:
    has_float64 = widest_float(rows.device) == torch.float64
    return rows.double() if has_float64 else rows.cpu().double()
