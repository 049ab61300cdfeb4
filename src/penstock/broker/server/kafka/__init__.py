"""The Kafka door: what Kafka's clients ask for, answered from the broker below."""
