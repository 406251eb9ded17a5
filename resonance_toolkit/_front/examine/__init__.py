"""`resonance.examine`: every instrument that applies, within a budget, in one tree."""
