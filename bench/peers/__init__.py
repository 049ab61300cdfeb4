"""Peers that a benchmark can put beside us in one run, on the same real brokers, each with one call.

    python_peers      confluent-kafka, aiokafka, kafka-python: produce, consume; confluent-kafka: mirror
    java_perf         Kafka's own producer and consumer performance tools
    mirror_maker      MirrorMaker 2 between two Kafkas, at its defaults and tuned
    spark_connector   Spark's own Kafka connector: read, write, copy

Every call returns `measure.Figures`: messages, seconds, and the CPU seconds of every process that took part. Start the
brokers with `jvm.BENCHMARK`: figures on brokers of the functional profile mean nothing.
"""
