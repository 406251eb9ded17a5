"""Branches at named layers: their weights, their losses, and the probe that holds them."""
