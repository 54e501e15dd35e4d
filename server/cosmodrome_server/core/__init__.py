"""Sans-IO state machines: they are handed records and the time, and return what to do."""
