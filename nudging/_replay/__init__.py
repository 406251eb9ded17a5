"""A model's forward pass recorded block by block, and replayed from any block on."""
