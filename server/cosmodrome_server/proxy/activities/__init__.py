"""One file per RPC, named after it."""
