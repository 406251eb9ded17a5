"""The verbs of `gradients`, for the contract suite."""

VERBS = {}
