"""The verbs of `toolkit` on random cases."""

import tempfile
from pathlib import Path

import probes
import resonance_toolkit as resonance
from tests.fuzz.cases import Case
from tests.fuzz.options import batch_size_for, layers_for, loss_for, mostly, samples_for, seed_for


def examine(case: Case):
    """Of two or three parts, within a moment."""
    choose = case.choose
    names = ["model", "response", "gradients", "landscape", "curvature", "attention", "nudging"]
    return resonance.examine(
        case.model,
        case.data,
        layers=layers_for(case),
        n=mostly(case, [1, 2], [0]),
        alpha=mostly(case, [1.0, 0], [-1]),
        loss=loss_for(case),
        budget=mostly(case, [0.2], [0]),
        steps=mostly(case, [2], [0]),
        seeds=choose.choice([1, 2]),
        samples=samples_for(case),
        parts=mostly(case, [names[:2], choose.sample(names, 3), "model"], ["no such", []]),
        batch_size=batch_size_for(case),
    )


def take(case: Case):
    return resonance.take(
        case.data,
        samples_for(case),
        seed_for(case),
        model=case.model,
        batch_size=batch_size_for(case),
    )


def find_layers(case: Case):
    layers = layers_for(case)
    return resonance.find_layers(case.model, "*" if layers is None else layers)


def find_blocks(case: Case):
    return resonance.find_blocks(case.model)


def page(case: Case):
    """Of whatever another verb gives, as a file that is read again."""
    made = {
        "examine": lambda: resonance.examine(
            case.model, case.data, parts=["model", "gradients"], budget=0.2, n=1, steps=2, seeds=1
        ),
        "similarity": lambda: probes.similarity(case.model, case.model, case.data, samples=None),
        "exits": lambda: probes.exits(case.model, case.data, layers_for(case)),
    }
    result = made[case.choose.choice(list(made))]()
    with tempfile.TemporaryDirectory() as folder:
        path = resonance.page(
            mostly(case, [result, {"one": result, "two": result}], [{}, 3]),
            Path(folder, "page.html"),
            title=mostly(case, [None, "<b>"], [3]),
        )
        return path.read_text(encoding="utf-8")


def monitor(case: Case):
    """Two updates; what training does to gradients is undone, and what the model has is not."""
    before = {p: p.grad for p in case.model.parameters()}
    try:
        for parameter in before:
            parameter.grad = None
        with resonance.preserving(case.model), resonance.evaluating(case.model):
            return _watch(case)
    finally:
        for parameter, grad in before.items():
            parameter.grad = grad


def _watch(case: Case):
    watching = resonance.Monitor(
        case.model,
        every=mostly(case, [1, 2], [0]),
        data=mostly(case, [None, case.data], [3, []]),
        samples=samples_for(case),
        layers=layers_for(case),
        sharpness_every=mostly(case, [None, None, 1], [0]),
        loss=loss_for(case),
        log=mostly(case, [None, lambda values, step: None], ["no such", 3]),
    )
    for _ in range(2):
        outputs = resonance.logits_of(resonance.call_model(case.model, case.x))
        watching.backward(outputs.square().mean(), outputs.sin().mean())
    return watching.tree()


def default_loss(case: Case):
    return resonance.default_loss([case.y])


VERBS = [
    examine,
    take,
    find_layers,
    find_blocks,
    page,
    monitor,
    default_loss,
]
