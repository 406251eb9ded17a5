"""Each public verb on a random case, with random options, some of them slightly wrong."""

import torch
import torch.nn.functional as F
from torch import nn

import attention
import gradients
import landscape
import nudging
import probes
import resonance_toolkit as resonance
from tests.fuzz.cases import Case


def _samples(case: Case):
    return case.choose.choice([None, 1, 3, 5, 100, 2, 0, -1, 2.5, True])


def _batch_size(case: Case):
    return case.choose.choice([None, None, 1, 2, 100, 0])


def _seed(case: Case):
    return case.choose.choice([0, 1, 7, "x"])


def _layers(case: Case):
    return case.choose.choice(["*", None, "blocks", "head", ["blocks", "head"], "no such", []])


def _loss(case: Case):
    # A loss of the user's own may fail in its own words, so only those that fit.
    fits = [None, None]
    returns_tensor = case.words["model"] in ("mlp", "conv", "transformer", "rnn")
    if returns_tensor and case.words["targets"] in ("classes", "ignored"):
        fits.append(F.cross_entropy)
    if returns_tensor and case.words["targets"] == "numbers":
        fits += [F.mse_loss, nn.MSELoss()]
    return case.choose.choice(fits)


def _plane_options(case: Case):
    choose = case.choose
    return {
        "samples": _samples(case),
        "batch_size": _batch_size(case),
        "loss": _loss(case),
        "seed": choose.choice([0, 3]),
        "normalisation": choose.choice([None, "filter", "layer", "unit", "none", "no such"]),
        "bn": choose.choice(["frozen", "recompute"]),
        "over": choose.choice([None, "*", "head*", "no such"]),
    }


def grid(case: Case):
    choose = case.choose
    return landscape.grid(
        case.model,
        case.data,
        size=choose.choice([1, 2, 3, (3, 1), 0]),
        span=choose.choice([1.0, 0.1, -1, 0]),
        directions=choose.choice(["random", "gradient", "random"]),
        **_plane_options(case),
    )


def plain_grid(case: Case):
    """With nothing but defaults, so that the loss in the centre is known."""
    return landscape.grid(case.model, case.data, size=3, samples=None)


def line(case: Case):
    return landscape.line(case.model, case.data, size=3, **_plane_options(case))


def curvature(case: Case):
    choose = case.choose
    return landscape.curvature(
        case.model,
        case.data,
        samples=_samples(case),
        batch_size=_batch_size(case),
        loss=_loss(case),
        k=choose.choice([0, 1, 2, 500]),
        trace_probes=choose.choice([0, 1, 2]),
        density_runs=choose.choice([0, 1]),
        matrix=choose.choice(["hessian", "gauss-newton"]),
    )


def compare(case: Case):
    def losses():
        outputs = resonance.logits_of(case.model(case.x))
        return outputs.square().mean(), outputs.sin().mean()

    return gradients.compare(case.model, losses)


def initial_norm(case: Case):
    return gradients.initial_norm(
        case.model,
        case.data,
        case.choose.choice([1, 10, 0]),
        samples=_samples(case),
        batch_size=case.choose.choice([1, 2, 100, 0]),
        loss=_loss(case),
    )


def noise(case: Case):
    def losses(x, y):
        outputs = resonance.logits_of(resonance.call_model(case.model, x))
        return outputs.square().mean(), outputs.sin().mean()

    return gradients.noise(
        case.model,
        case.data,
        losses,
        samples=_samples(case),
        batch_size=case.choose.choice([1, 2, 100, 0]),
        resamples=case.choose.choice([1, 5, 0]),
    )


def capture(case: Case):
    return attention.capture(
        case.model,
        case.data,
        samples=_samples(case),
        batch_size=_batch_size(case),
        queries=case.choose.choice(["auto", "mean", "all", "cls", 0, 99, "no such"]),
        maps=case.choose.choice([True, False]),
    )


def _credit(case: Case):
    makers = [
        nudging.backprop,
        nudging.random,
        nudging.direct_feedback,
        nudging.feedback,
    ]
    return case.choose.choice(makers)()


def _nudging_options(case: Case):
    return {"samples": _samples(case), "loss": _loss(case)}


def nudge(case: Case):
    return nudging.nudge(
        case.model,
        case.data,
        _credit(case),
        _layers(case),
        eta=case.choose.choice([0.01, 1.0, 0, -1]),
        **_nudging_options(case),
    )


def alignment(case: Case):
    return nudging.alignment(
        case.model, case.data, _credit(case), _layers(case), **_nudging_options(case)
    )


def plain_alignment(case: Case):
    """Of the gradient with itself, so that the cosine is known."""
    return nudging.alignment(case.model, case.data, nudging.backprop(), samples=None)


def correlation(case: Case):
    return nudging.correlation(
        case.model,
        case.data,
        _credit(case),
        _layers(case),
        n_directions=case.choose.choice([2, 3, 1, 0]),
        **_nudging_options(case),
    )


def stability(case: Case):
    return nudging.stability(
        case.model,
        case.data,
        _layers(case),
        n_batches=case.choose.choice([2, 3, 1]),
        batch_size=case.choose.choice([1, 2, 0]),
    )


def evaluate(case: Case):
    layers = case.choose.choice(["*", "blocks", "head", ["blocks", "head"], "no such"])
    with probes.attach(
        case.model,
        layers,
        n=case.choose.choice([1, 3, 0]),
        alpha=case.choose.choice([1.0, 0, -1, "x"]),
        sample=case.x,
    ) as probe:
        return probe.evaluate(case.data, samples=_samples(case), batch_size=_batch_size(case))


def record_exits(case: Case):
    return probes.record_exits(
        case.model, case.data, _layers(case), samples=_samples(case), batch_size=_batch_size(case)
    )


def take(case: Case):
    return resonance.take(
        case.data, _samples(case), _seed(case), model=case.model, batch_size=_batch_size(case)
    )


def find_layers(case: Case):
    layers = _layers(case)
    return resonance.find_layers(case.model, "*" if layers is None else layers)


def find_blocks(case: Case):
    return resonance.find_blocks(case.model)


VERBS = {
    verb.__name__: verb
    for verb in (
        grid,
        plain_grid,
        line,
        curvature,
        compare,
        initial_norm,
        noise,
        capture,
        nudge,
        alignment,
        plain_alignment,
        correlation,
        stability,
        evaluate,
        record_exits,
        take,
        find_layers,
        find_blocks,
    )
}


def check_result(name: str, case: Case, result) -> None:
    """Compare with a slow reference, where there is a cheap one."""
    if name == "plain_grid" and case.is_plain and not case.words["nan"]:
        was_training = {module: module.training for module in case.model.modules()}
        with torch.no_grad():
            outputs = resonance.logits_of(case.model.eval()(case.x))
        for module, mode in was_training.items():
            module.training = mode
        expected = F.cross_entropy(outputs.double(), case.y).item()
        centre = result["loss"].sel(alpha=0, beta=0).item()
        assert abs(centre - expected) < 1e-4 * max(1, abs(expected)), (centre, expected)

    if name == "plain_alignment":
        cosine = result["cosine"]
        error = abs(cosine.where(cosine.notnull(), 1) - 1).max().item()
        assert error < 1e-6, error
