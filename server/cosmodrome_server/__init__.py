"""The broker: model, core (sans-IO), store (files), broker (the shell), proxy (the wire)."""

__version__ = "0.1.0"
