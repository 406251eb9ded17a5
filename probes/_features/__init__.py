"""What the layers of a model give: read batch by batch, compared, and fitted by linear heads."""
