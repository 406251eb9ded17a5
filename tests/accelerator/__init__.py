"""The verbs on an accelerator: a simulated one, which shares memory and arithmetic with the CPU."""
