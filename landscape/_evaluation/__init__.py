"""The loss at displaced weights: the problem, one point, and many points."""
