"""What early exits would do: tokens recorded once, then routed, calibrated and compared."""
