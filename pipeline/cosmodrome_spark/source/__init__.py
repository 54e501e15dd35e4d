"""`format("rocketmq")` for Spark: batch and streaming reads (`sink` writes)."""
