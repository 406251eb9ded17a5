"""The verbs of `attention`, for the contract suite."""

VERBS = {}
