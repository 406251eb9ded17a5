"""Credit signals: backprop, its approximations, learned bridges, and controls."""
