# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A method with the signature of `append` that does nothing: what calling a compiled method costs."""


cdef class EmptyBuffer:
    def append(self, value, key=None, properties=None, event_time_ms=-1):
        pass

    def clear(self):
        pass
