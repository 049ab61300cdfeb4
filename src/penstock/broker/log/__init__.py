"""The durable log: entries of partitions in segment files, made durable by one commit thread.

    from penstock.broker.log.disk import SystemDisk
    from penstock.broker.log.commit import Committer, FsyncPolicy
    from penstock.broker.log.store import LogSettings, LogStore
    from penstock.broker.log.partition import EntryAt, PartitionLog, Place, Slice

What stands in the files, byte by byte, and what survives what: `docs/log-format.md`.
"""
