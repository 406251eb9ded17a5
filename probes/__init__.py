"""Auxiliary branches at named layers of any model, gone at inference."""

__all__: list[str] = []
