"""What /metrics shows."""
