"""A client for RocketMQ 5 brokers: async first, with blocking twins."""
