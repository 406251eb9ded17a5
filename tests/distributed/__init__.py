"""Several processes on one machine: tests, and the scripts that each rank runs."""
