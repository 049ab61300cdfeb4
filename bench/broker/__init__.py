"""The embedded broker beside a real Kafka of one node, in one run, each under the load of the same clients.

    produce      confluent-kafka, Kafka's performance tool and our own bulk send, in every size of message and batch
    consume      confluent-kafka and Kafka's performance tool
    requests     small Produce requests by hand, several in flight: requests per second
    durable      group commit beside a Kafka that does not sync, and beside one that syncs every batch
    start        start to the first answer, and memory after 1 GB
    flat         what a megabyte costs with 1 and 1,000 partitions, and with 1,000 idle connections

Both brokers run all the time (`pair.py`), contestants take turns, and ratios are those of single rounds. Unless said
otherwise both leave syncing to the system, as Kafka does by default.
"""
