"""DataFrame → DataFrame: no session, no configuration, nothing read or written."""
