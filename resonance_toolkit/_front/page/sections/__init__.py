"""What each part of the tree says: one file for each, from a node to a `Section`."""
