"""The verbs of `gradients` on random cases."""

import gradients
import resonance_toolkit as resonance
from tests.fuzz.cases import Case
from tests.fuzz.options import layers_for, loss_for, mostly, samples_for


def compare(case: Case):
    def losses():
        outputs = resonance.logits_of(case.model(case.x))
        return outputs.square().mean(), outputs.sin().mean()

    return gradients.compare(case.model, losses)


def initial_norm(case: Case):
    return gradients.initial_norm(
        case.model,
        case.data,
        mostly(case, [1, 10], [0]),
        samples=samples_for(case),
        batch_size=mostly(case, [1, 2, 100], [0]),
        loss=loss_for(case),
    )


def noise(case: Case):
    def losses(x, y):
        outputs = resonance.logits_of(resonance.call_model(case.model, x))
        return outputs.square().mean(), outputs.sin().mean()

    return gradients.noise(
        case.model,
        case.data,
        losses,
        samples=samples_for(case),
        batch_size=mostly(case, [1, 2], [100, 0]),
        resamples=mostly(case, [1, 5], [0]),
    )


def _trace(case: Case, **options):
    """Two updates of up to two micro-batches each; a user's own zeroing of gradients included."""
    before = {p: p.grad for p in case.model.parameters()}
    n_micro_batches = case.choose.choice([1, 2])
    try:
        for parameter in before:
            parameter.grad = None
        with (
            resonance.preserving(case.model),
            resonance.evaluating(case.model),
            gradients.Trace(case.model, 1, **options) as trace,
        ):
            for index in range(2 * n_micro_batches):
                outputs = resonance.logits_of(case.model(case.x))
                losses = outputs.square().mean(), outputs.sin().mean()
                trace.backward(*losses, update=index % n_micro_batches == n_micro_batches - 1)
        return trace.to_dataset()
    finally:
        for parameter, grad in before.items():
            parameter.grad = grad


def noise_scale(case: Case):
    return gradients.noise_scale(
        _trace(case, noise=mostly(case, [True], [False])),
        batch_size=mostly(case, [1, 8], [0]),
        resamples=mostly(case, [1, 5], [0]),
    )


def reweight(case: Case):
    def by_norm(gramian):
        return gramian.diagonal() ** -0.5

    wrong = [lambda gramian: gramian, "no such", None]
    weighting = mostly(case, ["mean", "sum", by_norm], wrong)
    return gradients.reweight(
        _trace(case), weighting, by=mostly(case, ["model", "layer"], ["step"])
    )


def trace(case: Case):
    level = case.choose.choice(["parameter", "activation"])
    return _trace(
        case,
        level=level,
        layers=layers_for(case) if level == "activation" else None,
        separate=case.choose.choice([True, False]),
    )


def summarise(case: Case):
    return gradients.summarise(
        _trace(case),
        mostly(case, ["cosine_total", "cosine"], ["no such", "gradient_norm"]),
        margin=mostly(case, [0.1, 0], [-1, 2]),
        share=mostly(case, [2 / 3, 1], [2, "x"]),
    )


def regroup(case: Case):
    groups = {"conv": ["stem", "norm"], "mlp": ["0", "4"]}.get(
        case.words["model"], ["blocks*", "head*"]
    )
    return gradients.regroup(_trace(case), mostly(case, [groups, {"all": "*"}], ["no such", {}]))


VERBS = [
    compare,
    initial_norm,
    noise,
    noise_scale,
    reweight,
    trace,
    summarise,
    regroup,
]
