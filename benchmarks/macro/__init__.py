"""Scenarios over the wire, each a question."""
