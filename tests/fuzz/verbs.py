"""Each public verb on a random case, with random options, some of them slightly wrong."""

import numpy as np
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


def mostly(case: Case, fitting: list, wrong: list):
    """Choose an option that fits, or seldom a wrong one: one is enough for a refusal."""
    return case.choose.choice(wrong if case.choose.random() < 0.04 else fitting)


def _samples(case: Case):
    return mostly(case, [None, None, 1, case.words["n"]], [100, 0, -1, 2.5, True])


def _batch_size(case: Case):
    return mostly(case, [None, None, 1, 2, 100], [0, -1, 2.5])


def _seed(case: Case):
    return mostly(case, [0, 1, 7], ["x", -1])


def _layers(case: Case):
    own = {"conv": ["stem", "norm"], "mlp": ["0", ["0", "2"]]}
    blocks = own.get(case.words["model"], ["blocks", "blocks*"])
    return mostly(case, ["*", None, *blocks], ["no such", [], "head", 3])


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
        "normalisation": mostly(case, [None, "filter", "layer", "none"], ["unit", "no such"]),
        "bn": choose.choice(["frozen", "recompute"]),
        "over": mostly(case, [None, None, "*.weight"], ["head*", "*", "no such"]),
    }


def grid(case: Case):
    choose = case.choose
    return landscape.grid(
        case.model,
        case.data,
        size=mostly(case, [1, 2, 3, (3, 1)], [0, (2,)]),
        span=mostly(case, [1.0, 0.1], [-1, 0]),
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


def curvature_by_layer(case: Case):
    choose = case.choose
    return landscape.curvature(
        case.model,
        case.data,
        samples=_samples(case),
        loss=_loss(case),
        k=mostly(case, [1, 2], [500]),
        by=mostly(case, ["layer", "*"], [["head"], "blocks", "no such", []]),
        max_products=mostly(case, [3, 10], [0]),
        trace_probes=choose.choice([0, 2]),
        density_runs=0,
        product=choose.choice(["exact", "finite difference"]),
        memory=mostly(case, [0, 2**31], [-1]),
        basis=choose.choice(["device", "host"]),
    )


def critical_sharpness(case: Case):
    losses = {"first": _loss(case), "second": _loss(case)}
    one_or_two = mostly(case, [{"loss": _loss(case)}, {"losses": losses}], [{"losses": {}}])
    update = {name: 0.1 * tensor for name, tensor in case.model.named_parameters()}
    return landscape.critical_sharpness(
        case.model,
        case.data,
        **one_or_two,
        direction=mostly(case, ["gradient", "gradient", update], [{"no such": case.x}, {}]),
        over=mostly(case, [None], ["*.weight", "no such"]),
        samples=_samples(case),
        tolerance=mostly(case, [0.05, 1e-6], [0, "x"]),
        max_evaluations=mostly(case, [3, 9], [2]),
        batch_size=_batch_size(case),
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
        mostly(case, [1, 10], [0]),
        samples=_samples(case),
        batch_size=mostly(case, [1, 2, 100], [0]),
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


def sinks(case: Case):
    return attention.sinks(
        case.model,
        case.data,
        samples=_samples(case),
        batch_size=_batch_size(case),
        threshold=mostly(case, [0.3, 0, 1], [2, "x"]),
        massive=mostly(case, [100, 0.1], [0, -1]),
    )


def capture(case: Case):
    return attention.capture(
        case.model,
        case.data,
        samples=_samples(case),
        batch_size=_batch_size(case),
        queries=mostly(case, ["auto", "mean", "all", 0], ["cls", 99, "no such"]),
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
        eta=mostly(case, [0.01, 1.0], [0, -1]),
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
        n_directions=mostly(case, [2, 3], [1, 0]),
        **_nudging_options(case),
    )


def stability(case: Case):
    return nudging.stability(
        case.model,
        case.data,
        _layers(case),
        n_batches=mostly(case, [2], [1, 3]),
        batch_size=mostly(case, [1, 2], [0]),
    )


def evaluate(case: Case):
    layers = _layers(case)
    with probes.attach(
        case.model,
        layers,
        n=mostly(case, [1, 3], [0]),
        alpha=mostly(case, [1.0, 0], [-1, "x"]),
        sample=case.x,
    ) as probe:
        return probe.evaluate(case.data, samples=_samples(case), batch_size=_batch_size(case))


def fit(case: Case):
    choose = case.choose
    with probes.attach(
        case.model,
        _layers(case),
        n=1,
        loss=choose.choice(["bce", "ce"]),
        listen_only=mostly(case, [True], [False]),
        sample=case.x,
    ) as probe:
        return probe.fit(
            case.data,
            method=mostly(case, ["ridge", "logistic"], ["no such"]),
            penalty=mostly(case, [1.0, 1e-3, 0], [-1]),
            samples=_samples(case),
            batch_size=_batch_size(case),
        )


def similarity(case: Case):
    other_state = {name: 2 * tensor for name, tensor in case.model.state_dict().items()}
    return probes.similarity(
        case.model,
        mostly(case, [other_state, case.model], [{}, None]),
        case.data,
        layers=_layers(case),
        pool=mostly(case, ["auto", "flatten"], ["mean", "no such"]),
        samples=_samples(case),
        batch_size=mostly(case, [4, 100], [3]),
    )


def same_similarity(case: Case):
    """Of a model with itself, so that the diagonal is known."""
    return probes.similarity(case.model, case.model, case.data, samples=None)


def tuned_lens(case: Case):
    with (
        probes.attach_exits(case.model, _layers(case), head="tuned", sample=case.x) as exits,
        resonance.preserving(case.model),
        resonance.evaluating(case.model),
        exits.listening(),
    ):
        resonance.call_model(case.model, case.x)
        divergence = exits.divergence()
        if divergence.requires_grad:  # the last layer's exit has nothing to learn
            divergence.backward()
        return exits.measure()


def record_exits(case: Case):
    return probes.record_exits(
        case.model, case.data, _layers(case), samples=_samples(case), batch_size=_batch_size(case)
    )


def examine(case: Case):
    """Of two or three parts, within a moment."""
    choose = case.choose
    names = ["model", "response", "gradients", "landscape", "curvature", "attention", "nudging"]
    return resonance.examine(
        case.model,
        case.data,
        layers=_layers(case),
        n=mostly(case, [1, 2], [0]),
        alpha=mostly(case, [1.0, 0], [-1]),
        loss=_loss(case),
        budget=mostly(case, [0.2], [0]),
        steps=mostly(case, [2], [0]),
        seeds=choose.choice([1, 2]),
        samples=_samples(case),
        parts=mostly(case, [names[:2], choose.sample(names, 3), "model"], ["no such", []]),
        batch_size=_batch_size(case),
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
        curvature_by_layer,
        critical_sharpness,
        compare,
        initial_norm,
        noise,
        noise_scale,
        reweight,
        capture,
        sinks,
        nudge,
        alignment,
        plain_alignment,
        correlation,
        stability,
        evaluate,
        fit,
        similarity,
        same_similarity,
        record_exits,
        tuned_lens,
        examine,
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

    if name == "same_similarity":
        cka = np.diagonal(result["cka"].values)
        assert np.nanmax(abs(cka - 1), initial=0) < 1e-6, cka

    if name == "plain_alignment":
        cosine = result["cosine"]
        error = abs(cosine.where(cosine.notnull(), 1) - 1).max().item()
        assert error < 1e-6, error
