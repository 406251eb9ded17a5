"""Losses at early exits: the heads that exits share, their weights and their targets."""
