"""What Prometheus sees: the names, counting on the hot path, rendering off the loop."""
