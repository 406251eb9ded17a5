"""How a probe takes hold of a model: hooks, features, pooling, the dry run that finds shapes."""
