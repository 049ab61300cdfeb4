"""From one message at a time to batches on their way: routing, lanes, sealing, delivery."""
