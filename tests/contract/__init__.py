"""What every verb owes its user."""
