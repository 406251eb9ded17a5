"""The verbs of `attention` on random cases."""

import torch

import attention
import resonance_toolkit as resonance
from tests.fuzz.cases import Case
from tests.fuzz.options import batch_size_for, mostly, samples_for


def capture(case: Case):
    return attention.capture(
        case.model,
        case.data,
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        queries=mostly(case, ["auto", "mean", "all", 0], ["cls", 99, "no such"]),
        maps=case.choose.choice([True, False]),
    )


def sinks(case: Case):
    return attention.sinks(
        case.model,
        case.data,
        samples=samples_for(case),
        batch_size=batch_size_for(case),
        threshold=mostly(case, [0.3, 0, 1], [2, "x"]),
        massive=mostly(case, [100, 0.1], [0, -1]),
    )


def _maps(case: Case):
    return attention.capture(
        case.model, case.data, samples=samples_for(case), queries="all", keys="all", maps=True
    )


def statistics(case: Case):
    return attention.statistics(
        _maps(case),
        threshold=mostly(case, [0.1, 1.0], [0, 2, "x"]),
        mass=mostly(case, [0.9, 1.0], [0, 2]),
    )


def rollout(case: Case):
    return attention.rollout(_maps(case), residual=mostly(case, [0.5, 0, 1], [-1, "x"]))


def capturing(case: Case):
    with (
        resonance.preserving(case.model),
        resonance.evaluating(case.model),
        attention.capturing(case.model, queries=mostly(case, ["mean", "all"], [99])) as captured,
        torch.no_grad(),
    ):
        resonance.call_model(case.model, case.x)
    return captured.dataset()


VERBS = [
    capture,
    sinks,
    statistics,
    rollout,
    capturing,
]
