"""The verbs of `nudging` on random cases."""

import copy

import torch

import nudging
import resonance_toolkit as resonance
from tests.fuzz.cases import Case
from tests.fuzz.options import layers_for, loss_for, mostly, samples_for


def _credit(case: Case):
    makers = [
        nudging.backprop,
        nudging.random,
        nudging.direct_feedback,
        nudging.feedback,
    ]
    return case.choose.choice(makers)()


def _nudging_options(case: Case):
    return {"samples": samples_for(case), "loss": loss_for(case)}


def nudge(case: Case):
    return nudging.nudge(
        case.model,
        case.data,
        _credit(case),
        layers_for(case),
        eta=mostly(case, [0.01, 1.0], [0, -1]),
        **_nudging_options(case),
    )


def alignment(case: Case):
    return nudging.alignment(
        case.model, case.data, _credit(case), layers_for(case), **_nudging_options(case)
    )


def plain_alignment(case: Case):
    """Of the gradient with itself, so that the cosine is known."""
    return nudging.alignment(case.model, case.data, nudging.backprop(), samples=None)


def correlation(case: Case):
    return nudging.correlation(
        case.model,
        case.data,
        _credit(case),
        layers_for(case),
        n_directions=mostly(case, [2, 3], [1, 0]),
        **_nudging_options(case),
    )


def stability(case: Case):
    return nudging.stability(
        case.model,
        case.data,
        layers_for(case),
        n_batches=mostly(case, [2], [1, 3]),
        batch_size=mostly(case, [1, 2], [0]),
    )


def measure(case: Case):
    return nudging.measure(
        case.model,
        case.data,
        _credit(case),
        layers_for(case),
        n_directions=mostly(case, [2], [1]),
        epsilon=mostly(case, [1e-3, 1e-2], [0, -1]),
        keep_samples=case.choose.choice([True, False]),
        dtype=mostly(case, [torch.float64, None], [torch.long]),
        **_nudging_options(case),
    )


def audit(case: Case):
    return nudging.audit(
        case.model,
        case.data,
        layers_for(case),
        accuracy=mostly(case, [None, 0.5], [2, "x"]),
        loss=loss_for(case),
        n_batches=mostly(case, [2], [1]),
        batch_size=mostly(case, [1, 2], [0]),
    )


def drift(case: Case):
    later = {name: 1.1 * tensor for name, tensor in case.model.named_parameters()}
    return nudging.drift(
        case.model,
        mostly(case, [later, case.model.state_dict()], [{}, None, {"no such": case.x}]),
        over=mostly(case, [None, "*.weight"], ["no such"]),
    )


def depth_utility(case: Case):
    def train(model):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.01

    def evaluate(model):
        outputs = resonance.logits_of(resonance.call_model(model.eval(), case.x))
        return outputs.double().mean().item()

    return nudging.depth_utility(
        lambda: copy.deepcopy(case.model),
        train,
        evaluate,
        layers_for(case),
        seeds=mostly(case, [[0], [0, 1]], [[], ["x"]]),
    )


def _bridge(case: Case):
    make = case.choose.choice([nudging.StateBridge, nudging.CreditBridge])
    return make(hidden=mostly(case, [4], [0]))


def bridge(case: Case):
    return _bridge(case).fit(
        case.model,
        case.data,
        layers_for(case),
        loss=loss_for(case),
        epochs=mostly(case, [1], [0]),
        batch_size=mostly(case, [1, 2, 100], [0]),
        samples=samples_for(case),
    )


def saved_credit(case: Case):
    """Fitted or used once, saved, loaded, and used again."""
    credit = case.choose.choice([nudging.direct_feedback, nudging.feedback, None])
    layers = layers_for(case)
    if credit is None:
        credit = _bridge(case)
        credit.fit(case.model, case.data, layers, epochs=1)
    else:
        credit = credit()
        nudging.alignment(case.model, case.data, credit, layers)
    loaded = nudging.load_credit(credit.to_dataset())
    return nudging.alignment(case.model, case.data, loaded, layers)


def equilibrium(case: Case):
    credit = nudging.EquilibriumPropagation(
        steps=mostly(case, [1, 2], [0]),
        beta=mostly(case, [0.5, -0.5], [0]),
        anchored=case.choose.choice([True, False]),
    )
    return nudging.alignment(
        case.model, case.data, credit, layers_for(case), **_nudging_options(case)
    )


def auxiliary(case: Case):
    def of_logits(outputs, targets):
        return resonance.logits_of(outputs).square().flatten(1).sum(1)

    credit = nudging.auxiliary(of_logits)
    return nudging.alignment(
        case.model, case.data, credit, layers_for(case), **_nudging_options(case)
    )


def observe(case: Case):
    with resonance.preserving(case.model), resonance.evaluating(case.model):
        return nudging.observe(case.model, case.x, case.y, layers_for(case), loss=loss_for(case))


VERBS = [
    nudge,
    alignment,
    plain_alignment,
    correlation,
    stability,
    measure,
    audit,
    drift,
    depth_utility,
    bridge,
    saved_credit,
    equilibrium,
    auxiliary,
    observe,
]
