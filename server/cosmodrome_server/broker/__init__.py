"""The shell around core and store: one method per verb, group commit, background services."""
