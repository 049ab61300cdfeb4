"""Kafka's bytes: record batches of version 2, written and read without I/O.

The path of a batch: `buffer` (written; framing by the kernel `_batch` or its plain twin `batch`), `header` (judged,
rewritten and cut out of a fetched buffer unopened), `records` (read into columns). `layout` holds the byte table.
Nothing is imported here, so that judging headers does not load pyarrow.
"""
