"""Pictures of credits."""
