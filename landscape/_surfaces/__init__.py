"""Loss surfaces around and between models: one file per verb."""
