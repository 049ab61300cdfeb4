# cython: language_level=3
"""The compiled seam of a batch being written: one call per message that stays in C from the sender to the wire's kernel.

`BatchBuffer` in `entry` is the same seam for everybody else. Knows no system; a system's kernel derives from it. Must
never import anything, so that whoever is handed a buffer can ask what it is without loading a wire.
"""


cdef class MessageBuffer:
    """A batch being written whose kernel is compiled."""

    cdef int append_bytes(self, object value, object key, object properties, int64_t time_ms) except -2:
        """Frame one message and return its index; NO_ROOM when there is no room for it, or the batch is sealed.

        `value` and `key` are exactly bytes or None, `properties` None or exactly a dict, `time_ms` was checked. Runs no
        foreign code and keeps the interpreter lock, so whatever else the caller changes with it is seen at once.
        NOT_PLAIN sends the caller the slow way, through `append`: it takes the message or raises what is wrong.
        """
        return NOT_PLAIN


def append_bytes(MessageBuffer buffer not None, value, key, properties, int64_t time_ms):
    """The same from Python, with the arguments' types checked: how tests come to it."""
    for data in (value, key):
        if data is not None and type(data) is not bytes:
            raise TypeError(f"expected exactly bytes or None, found {type(data).__name__}")
    if properties is not None and type(properties) is not dict:
        raise TypeError(f"expected exactly a dict or None, found {type(properties).__name__}")
    return buffer.append_bytes(value, key, properties, time_ms)
