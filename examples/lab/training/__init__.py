"""Recipes and the loops that follow them."""
