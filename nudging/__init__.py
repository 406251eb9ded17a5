"""Functional tests of a credit signal, block by block."""

__all__: list[str] = []
