"""Ready-made jobs: one file each, wiring only. `registry` lists them, `run` runs them."""
