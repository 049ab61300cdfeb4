"""Copying between two clusters, beside the peers that copy: every job in a process of its own, both brokers up.

    kafka        a real Kafka of one node to another: ours in its ways, a Python mirror, MirrorMaker 2
    embedded     the same from one `penstock serve` to another
    filtered     a filter that rejects nine batches in ten beside none
    memory       what the copying process holds while gigabytes pass through it

Source topics are made by our own producer in batches that have a given size on the wire (`stock.py`); contestants take
turns, and ratios are those of single rounds. What the target holds is counted after every run, and then deleted.
"""
