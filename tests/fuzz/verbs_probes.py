"""The verbs of `probes` on random cases."""

import torch

import probes
import resonance_toolkit as resonance
from tests.fuzz.cases import Case
from tests.fuzz.options import batch_size_for, layers_for, mostly, samples_for, seed_for
from tests.helpers.decoders import Averager


def evaluate(case: Case):
    layers = layers_for(case)
    with probes.attach(
        case.model,
        layers,
        n=mostly(case, [1, 3], [0]),
        alpha=mostly(case, [1.0, 0], [-1, "x"]),
        sample=case.x,
    ) as probe:
        return probe.evaluate(case.data, samples=samples_for(case), batch_size=batch_size_for(case))


def fit(case: Case):
    choose = case.choose
    with probes.attach(
        case.model,
        layers_for(case),
        n=1,
        loss=choose.choice(["bce", "ce"]),
        listen_only=mostly(case, [True], [False]),
        sample=case.x,
    ) as probe:
        return probe.fit(
            case.data,
            method=mostly(case, ["ridge", "logistic"], ["no such"]),
            penalty=mostly(case, [1.0, 1e-3, 0], [-1]),
            samples=samples_for(case),
            batch_size=batch_size_for(case),
        )


def similarity(case: Case):
    other_state = {name: 2 * tensor for name, tensor in case.model.state_dict().items()}
    return probes.similarity(
        case.model,
        mostly(case, [other_state, case.model], [{}, None]),
        case.data,
        layers=layers_for(case),
        pool=mostly(case, ["auto", "flatten"], ["mean", "no such"]),
        samples=samples_for(case),
        batch_size=mostly(case, [4, 100], [3]),
    )


def same_similarity(case: Case):
    """Of a model with itself, so that the diagonal is known."""
    return probes.similarity(case.model, case.model, case.data, samples=None)


def tuned_lens(case: Case):
    with (
        probes.attach_exits(case.model, layers_for(case), head="tuned", sample=case.x) as exits,
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
        case.model,
        case.data,
        layers_for(case),
        samples=samples_for(case),
        batch_size=batch_size_for(case),
    )


def training_step(case: Case):
    """A step of the user's own, with any kind of probe."""
    choose = case.choose
    schedule = probes.schedules.linear(0.0, 0.5, steps=3)
    with (
        probes.attach(
            case.model,
            layers_for(case),
            n=mostly(case, [2, 3], [0]),
            alpha=mostly(case, [1.0, schedule, 0], ["x"]),
            loss=choose.choice(["bce", "ce"]),
            init=choose.choice(["orthogonal", "normal", "default"]),
            active=mostly(case, [None, 0, 1, "all"], [4, "x"]),
            connected=choose.choice([True, True, False]),
            pool=mostly(case, ["auto", "mean", "flatten", "spatial"], ["no such", "cls"]),
            method=mostly(case, ["exact"], ["compressed"]),
            sample=case.x,
        ) as probe,
        resonance.preserving(case.model),
        resonance.evaluating(case.model),
        probe.listening(),
    ):
        resonance.call_model(case.model, case.x)
        loss = probe.loss(case.y)
        if loss.requires_grad:
            loss.backward()
        return probe.measure(case.y)


def compressed(case: Case):
    with probes.attach(
        case.model,
        layers_for(case),
        n=mostly(case, [2, 30], [1]),
        method=case.choose.choice(["exact", "compressed"]),
        sample=case.x,
    ) as probe:
        return probe.compression_error(case.x, case.choose.choice([None, case.y]))


def exits_training(case: Case):
    with (
        probes.attach_exits(
            case.model,
            layers_for(case),
            head=mostly(case, ["model", "own", "tuned"], ["no such"]),
            weights=mostly(case, ["deep_supervision"], ["no such", 3]),
            sample=case.x,
        ) as exits,
        resonance.preserving(case.model),
        resonance.evaluating(case.model),
        exits.listening(),
    ):
        resonance.call_model(case.model, case.x)
        loss = exits.loss(case.y)
        if loss.requires_grad:
            loss.backward()
        return exits.measure()


def exits(case: Case):
    return probes.exits(
        case.model,
        case.data,
        layers_for(case),
        thresholds=mostly(case, [[0.5], [0, 0.5, 1]], [[], ["x"], [2]]),
        bins=mostly(case, [1, 5], [0]),
        samples=samples_for(case),
        batch_size=batch_size_for(case),
    )


def exit_analysis(case: Case):
    record = probes.record_exits(case.model, case.data, layers_for(case), samples=None)
    match case.choose.choice(["route", "reliability", "calibrate", "map"]):
        case "route":
            return probes.route_exits(record, thresholds=mostly(case, [[0.5]], [[], ["x"]]))
        case "reliability":
            return probes.exit_reliability(record, bins=mostly(case, [1, 5], [0, 2.5]))
        case "calibrate":
            return probes.calibrate_exits(
                record,
                **mostly(
                    case,
                    [{"exit_rate": 0.5}, {"agreement": 0.5}, {"increase": 0.1}],
                    [{}, {"exit_rate": 2}],
                ),
                delta=mostly(case, [0.05], [0, 1]),
            )
        case _:
            return probes.exit_map(record, mostly(case, [0.5, 0, 1], ["x", float("nan")]))


def generate(case: Case):
    """By a language model of its own, which is not the case's."""
    generator = torch.Generator().manual_seed(case.words["n"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.words["n"])
        model = Averager(vocabulary=7)
    prompt = torch.randint(0, 7, (mostly(case, [1, 2], [0]), 3), generator=generator)
    return probes.generate(
        mostly(case, [model], [case.model]),
        prompt,
        mostly(case, [1, 4], [0, 2.5]),
        layers=mostly(case, ["layers.*", "layers.0", ()], ["no such", "head"]),
        threshold=mostly(case, [0.2, 1.0], ["x", -1]),
        skipped=mostly(case, ["propagate", "recompute"], ["no such"]),
        temperature=mostly(case, [0.0, 1.0], [-1]),
        seed=seed_for(case),
    )


VERBS = [
    evaluate,
    fit,
    similarity,
    same_similarity,
    tuned_lens,
    record_exits,
    training_step,
    compressed,
    exits_training,
    exits,
    exit_analysis,
    generate,
]
