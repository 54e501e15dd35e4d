"""The shells of the SDK: channels, sessions, loops. What they do is decided in `_core`."""
