"""Our producer beside its peers, on one real Kafka, in one run.

    send             one message at a time and in bulk: rate and CPU seconds of the client
    awaited          asyncio: many tasks, many sends awaited together, one send after the other
    gate             batch I/O on and off, for many small requests
    latency          from seal to write while a thread is busy sending

Every job runs in a process of its own (`jobs.py`), so that its CPU time is its own; contestants take turns, round by
round (`contest.py`). A job observes the outcome of every message before its clock stops, and what the topic holds
afterwards is counted.
"""
