"""Text generated with early exits, and what it costs."""
