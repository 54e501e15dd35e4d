"""The gate by itself: what a call costs before anything is done with it."""
