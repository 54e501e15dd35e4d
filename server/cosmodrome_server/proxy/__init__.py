"""The wire: fronts, one activity per RPC, proto ⇄ model, status codes, sessions, security."""
