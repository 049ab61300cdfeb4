"""What compiled code may do with a message id: make one without boxing its position."""

from libc.stdint cimport int64_t

cdef int64_t UNCOUNTED


cdef class MessageId:
    cdef readonly str topic
    cdef readonly object partition
    cdef object other
    cdef int64_t number
    cdef tuple fields(self)


cdef MessageId new_id(str topic, object partition, int64_t number)
