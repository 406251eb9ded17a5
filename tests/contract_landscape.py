"""The verbs of `landscape`, for the contract suite."""

import landscape

VERBS = {
    "landscape.grid": lambda model, data: landscape.grid(model, data, samples=12, size=5),
}
