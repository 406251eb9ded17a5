"""The ground floor: what every instrument shares, and what imports no instrument."""
