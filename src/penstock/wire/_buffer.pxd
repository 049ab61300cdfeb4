"""What compiled code may ask of a batch being written, whatever system's bytes it holds."""

from libc.stdint cimport int64_t

cdef enum:
    NO_ROOM = -1
    NOT_PLAIN = -3


cdef class MessageBuffer:
    cdef int append_bytes(self, object value, object key, object properties, int64_t time_ms) except -2
