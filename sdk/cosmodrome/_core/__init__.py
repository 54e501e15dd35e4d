"""Sans-IO parts of the SDK: they are handed bytes, values and times, and return what to do."""
