"""The verbs of `nudging`, for the contract suite."""

VERBS = {}
