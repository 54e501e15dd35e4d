"""Speed, measured: `benchmarks.run` for us, `benchmarks.peer` against Apache RocketMQ."""
