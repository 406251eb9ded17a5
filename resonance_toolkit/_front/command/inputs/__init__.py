"""The model and the data that the words of the command line name."""
