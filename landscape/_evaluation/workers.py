"""Points evaluated in other processes: a problem goes there as bytes, values come back."""

import pickle
from dataclasses import replace
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray

from landscape._evaluation.point import Plan, point_evaluator
from landscape._evaluation.problem import Problem

Array = NDArray[np.float64]


def pickle_problem(problem: Problem, plan: Plan) -> bytes:
    """Everything that `evaluate_pickled` needs."""
    # To bytes here: multiprocessing would put the tensors in shared memory instead, and workers
    # that move their weights would move the user's.
    plan = replace(plan, threads=plan.threads or torch.get_num_threads())

    try:
        return pickle.dumps((problem, plan))
    except Exception as error:
        try:
            cloudpickle = import_module("cloudpickle")  # handles lambdas; comes with Dask
        except ImportError:
            raise TypeError(
                "`executor`: expected a model, loss and metrics that can be pickled (functions of "
                f"a module, no lambdas): {error}"
            ) from error
        return bytes(cloudpickle.dumps((problem, plan)))


def evaluate_pickled(payload: bytes, points: Array) -> Array:
    """Evaluate some points, in a process of an executor."""
    problem, plan = pickle.loads(payload)
    with point_evaluator(problem, plan) as evaluate_point:
        return np.array([evaluate_point(point) for point in points.tolist()])
