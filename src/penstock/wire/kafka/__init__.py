"""Kafka's bytes: record batches of version 2, and a connection's side of the protocol, written and read without I/O.

The path of a batch: `buffer` (written; framing by the kernel `_batch` or its plain twin `batch`), `header` (judged,
rewritten and cut out of a fetched buffer unopened), `records` (read into columns). `layout` holds the byte table.
The path of a request: `connection` (greeting, headers, order of answers), `versions` (which one), `requests` (neutral
words to bodies and back), `frames` (cut out of what arrives), `codes` (errors). `system` is where it starts.
Nothing is imported here, so that judging headers does not load pyarrow.
"""
