"""The verbs of `nudging`, for the contract suite."""

import copy

import torch
import torch.nn.functional as F

import nudging

BLOCKS = ["stem", "norm", "blocks", "blocks.*", "head"]


def _credit_of_logits(outputs, targets):
    return outputs.square().sum(1)


def _without_some_targets(data):
    x, y = data
    return x, y.index_fill(0, torch.tensor([0, 3], device=y.device), -100)


def _train(model, x, y):
    """One step on the parameters that may move."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p -= g


def _drift(model, data):
    later = copy.deepcopy(model)
    _train(later.eval(), *data)
    return nudging.drift(model, later)


def _depth_utility(model, data):
    return nudging.depth_utility(
        lambda: copy.deepcopy(model),
        lambda copied: _train(copied, *data),
        lambda copied: (copied.eval()(data[0]).argmax(1) == data[1]).double().mean().item(),
        ["blocks.0", "blocks.2"],
        seeds=[0, 1],
    )


VERBS = {
    "nudging.drift": _drift,
    "nudging.depth_utility": _depth_utility,
    "nudging.stability": lambda model, data: nudging.stability(
        model, data, BLOCKS, n_batches=3, batch_size=4
    ),
    "nudging.audit": lambda model, data: nudging.audit(
        model, data, BLOCKS, n_batches=3, batch_size=4, accuracy=0.5
    ),
    "nudging.nudge": lambda model, data: nudging.nudge(
        model,
        data,
        nudging.backprop(),
        BLOCKS,
        eta=[0.01, 0.1],
        samples=12,
        batch_size=5,
        keep_samples=True,
    ),
    "nudging.nudge found blocks": lambda model, data: nudging.nudge(
        model, data, nudging.backprop(), samples=12, batch_size=5
    ),
    "nudging.nudge positionals": lambda model, data: nudging.nudge(
        model, ((data[0].cpu().numpy(),), data[1].int()), nudging.backprop(), "blocks.*", samples=12
    ),
    "nudging.nudge uncounted": lambda model, data: nudging.nudge(
        model, _without_some_targets(data), nudging.backprop(), "blocks.*", batch_size=5
    ),
    "nudging.nudge random": lambda model, data: nudging.nudge(
        model,
        data,
        nudging.random(1),
        "blocks.*",
        samples=12,
        normalisation="unit",
        first_order=False,
    ),
    "nudging.nudge auxiliary": lambda model, data: nudging.nudge(
        model, data, nudging.auxiliary(_credit_of_logits), BLOCKS, samples=12, batch_size=5
    ),
    "nudging.nudge feedback": lambda model, data: nudging.nudge(
        model, data, nudging.direct_feedback(), "blocks.*", samples=12, batch_size=5
    ),
    "nudging.nudge equilibrium": lambda model, data: nudging.nudge(
        model, data, nudging.EquilibriumPropagation(steps=2), "blocks.*", samples=12, batch_size=5
    ),
    "nudging.StateBridge.fit": lambda model, data: nudging.StateBridge(hidden=8).fit(
        model, data, "blocks.*", epochs=1, batch_size=5
    ),
    "nudging.CreditBridge.fit": lambda model, data: nudging.CreditBridge(hidden=8).fit(
        model, data, "blocks.*", epochs=1, batch_size=5
    ),
    "nudging.alignment": lambda model, data: nudging.alignment(
        model, data, nudging.random(), BLOCKS, samples=12, batch_size=5
    ),
    "nudging.correlation": lambda model, data: nudging.correlation(
        model, data, nudging.backprop(), BLOCKS, n_directions=3, samples=12, batch_size=5
    ),
    "nudging.measure": lambda model, data: nudging.measure(
        model, data, nudging.backprop(), BLOCKS, n_directions=2, samples=12, batch_size=5
    ),
}
