"""Tests that need the simulated device: run by `test_accelerator.py`, in processes of their own."""
