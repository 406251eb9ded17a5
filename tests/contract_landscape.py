"""The verbs of `landscape`, for the contract suite."""

VERBS = {}
