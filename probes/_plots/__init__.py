"""Pictures of exits."""
