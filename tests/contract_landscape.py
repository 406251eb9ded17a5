"""The verbs of `landscape`, for the contract suite."""

import landscape

VERBS = {
    "landscape.grid": lambda model, data: landscape.grid(model, data, samples=12, size=5),
    "landscape.smoothness": lambda model, data: landscape.smoothness(
        landscape.grid(model, data, samples=12, size=3)
    ),
    "landscape.dilution": lambda model, data: landscape.dilution(
        model, data, {"branch": model.head.weight.detach().clone()}, samples=12, size=3
    ),
}
