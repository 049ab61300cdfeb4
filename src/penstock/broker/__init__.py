"""An embedded broker: a durable log on one machine that clients of real brokers can use as it is."""
