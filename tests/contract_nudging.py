"""The verbs of `nudging`, for the contract suite."""

import nudging

BLOCKS = ["stem", "norm", "blocks", "blocks.*", "head"]


def _credit_of_logits(outputs, targets):
    return outputs.square().sum(1)


VERBS = {
    "nudging.nudge": lambda model, data: nudging.nudge(
        model, data, nudging.backprop, BLOCKS, eta=[0.01, 0.1], samples=12, batch_size=5,
        keep_samples=True,
    ),
    "nudging.nudge random": lambda model, data: nudging.nudge(
        model, data, nudging.random(1), "blocks.*", samples=12, normalisation="unit",
        first_order=False,
    ),
    "nudging.nudge auxiliary": lambda model, data: nudging.nudge(
        model, data, nudging.auxiliary(_credit_of_logits), BLOCKS, samples=12, batch_size=5,
    ),
    "nudging.alignment": lambda model, data: nudging.alignment(
        model, data, nudging.random(), BLOCKS, samples=12, batch_size=5
    ),
    "nudging.correlation": lambda model, data: nudging.correlation(
        model, data, nudging.backprop, BLOCKS, n_directions=3, samples=12, batch_size=5
    ),
    "nudging.measure": lambda model, data: nudging.measure(
        model, data, nudging.backprop, BLOCKS, n_directions=2, samples=12, batch_size=5
    ),
}  # fmt: skip
