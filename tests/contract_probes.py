"""The verbs of `probes`, for the contract suite."""

VERBS = {}
