"""The verbs of `attention`, for the contract suite."""

import attention


def _maps(model, data, **settings):
    return attention.capture(model, data[0][:4], queries="all", maps=True, **settings)


VERBS = {
    "attention.capture": lambda model, data: attention.capture(model, data[0], queries="mean"),
    "attention.capture, maps": _maps,
    "attention.capture, a pair in batches": lambda model, data: attention.capture(
        model, data, samples=7, batch_size=3
    ),
    "attention.sinks": lambda model, data: attention.sinks(model, data, samples=7, batch_size=3),
    "attention.statistics": lambda model, data: attention.statistics(_maps(model, data)),
    "attention.rollout": lambda model, data: attention.rollout(_maps(model, data, keys="all")),
}
