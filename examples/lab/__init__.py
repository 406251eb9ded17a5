"""The laboratory behind the examples: the papers' backbones and data."""
