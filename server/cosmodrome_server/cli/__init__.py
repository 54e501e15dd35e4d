"""The command `cosmodrome`."""
