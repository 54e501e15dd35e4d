"""Writing DataFrames to topics: rows to requests (`encode`), requests to acks (`sender`)."""
