"""Values that cross layers: messages, topics, groups, deliveries, handles."""
