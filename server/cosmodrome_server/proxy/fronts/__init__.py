"""The fronts: grpcio (always there) and gate (native, where it is installed)."""
