"""Batches in one process, without brokers: what framing, reading and rewriting them costs beside other clients.

    messages   what is framed, in the shape that each contestant takes
    kernels    our writer and reader on the compiled kernel, and on its plain twin
    peers      aiokafka's compiled builder and reader, kafka-python's
    append     one message at a time, beside an empty method call
    encode     10,000 messages at a time
    decode     the same back into columns
    header     a batch unopened; and what sealing costs

Everything runs on one thread, so the clock is that thread's CPU time: the machine's other work hardly shows in it.
Batches hold 256 KB and are not compressed, since compression would cost every side the same; all sides make and verify
checksums.
"""
