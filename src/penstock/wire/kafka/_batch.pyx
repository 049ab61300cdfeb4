# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `batch`: the same two things, framing records and gathering their fields, the same results.

What differs: bytes lie in C memory, and the interpreter lock is released where no Python object is touched (columns in
and out). Memory safety rests on three rules. `append` and `extend_list` hold the lock and run no foreign code between
taking a pointer and copying from it. Memory moves only in `room` and goes only in `give_back`, and neither happens, nor
is anything framed, while a view of it is held. Gathering first measures every field within the end of its record, and
only then copies.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from penstock.wire._buffer cimport NO_ROOM, NOT_PLAIN, MessageBuffer

import numpy as np

from penstock.wire.columns import NO_BYTES, BinaryColumn, BufferColumns, MapColumn
from penstock.wire.kafka.batch import (
    TIME_MS_MAX as _TIME_MS_MAX,
    _bytes,
    checked_time,
    raise_dropped,
    raise_sealed,
    raise_too_large,
)
from penstock.wire.kafka import layout
from penstock.wire.kafka.faults import Fault, fault_error
from penstock.wire.kafka.framing import frame_properties

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*)
    bint PyUnicode_IS_COMPACT_ASCII(PyObject*)
    const char* PyUnicode_DATA(PyObject*)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject*)
    PyObject* PyList_GET_ITEM(PyObject*, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(PyObject*)
    void PyErr_Clear()

cdef extern from *:
    """
    static inline void penstock_write_word(uint8_t* at, uint64_t word) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        memcpy(at, &word, sizeof word);
    }
    """
    void write_word "penstock_write_word"(uint8_t* at, uint64_t word) noexcept nogil  # its lowest byte first

cdef Py_ssize_t HEADER_BYTES = layout.BATCH_HEADER_BYTES
cdef Py_ssize_t RECORD_BYTES_MIN = layout.RECORD_BYTES_MIN
cdef Py_ssize_t PAIR_BYTES_MIN = layout.HEADER_BYTES_MIN
cdef int64_t RECORD_BYTES_MAX = layout.RECORD_BYTES_MAX
cdef int64_t TIME_MS_MAX = _TIME_MS_MAX
cdef object NO_TIME = -1
cdef object INT64 = np.dtype(np.int64)
cdef object INT32 = np.dtype(np.int32)
cdef object UINT8 = np.dtype(np.uint8)

cdef enum:
    STACK_PAIRS = 24
    RUN = 64
    FIRST_CAPACITY = 4096
    SPARES_MAX = 8
    SPARE_BYTES_MAX = 1 << 20

cdef enum Refusal:
    NONE = 0
    FULL = 1
    TIME = 2
    TOO_LARGE = 3
    NO_MEMORY = 4
    HELD = 5

# A byte string, pointed at; null where its size is -1.
cdef struct Bytes:
    const uint8_t* data
    Py_ssize_t size

cdef struct Pair:
    Bytes name
    Bytes value

# Messages pointed at, to be framed one after the other. Where `times` is NULL, all have `time_ms`.
cdef struct Run:
    Py_ssize_t count
    Bytes values[RUN]
    Bytes keys[RUN]
    bint has_keys
    const int64_t* times
    int64_t time_ms
    Bytes headers

cdef struct Strings:
    const int32_t* offsets
    const uint8_t* data
    const uint8_t* validity
    Py_ssize_t bit_offset

cdef struct Block:
    uint8_t* data
    Py_ssize_t capacity

# Where the next record goes, and what the header will tell of those before it. Loops work on a copy and put it back
# when all went well, so that whatever is refused leaves nothing behind.
cdef struct Place:
    Py_ssize_t end
    int count
    int64_t first_time_ms
    int64_t min_time_ms
    int64_t max_time_ms


# ---------------------------------------------------------------------------------------------------------------------
# Framing


cdef class RecordBuffer(MessageBuffer):
    """The records of a batch being written; see the plain twin."""

    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef bint dropped
    cdef Py_ssize_t safe_end  # a record that ends by here is taken without another question
    cdef Py_ssize_t views
    cdef Place place
    cdef Refusal refusal
    cdef Py_ssize_t limit
    cdef public bint sealed

    def __init__(self, Py_ssize_t bytes_max=262_144):
        self.limit = bytes_max
        self.clear()

    def __dealloc__(self):
        self.give_back()

    def __len__(self):
        return self.place.count

    @property
    def bytes_max(self):
        """How large the batch may become; a batch that is larger already takes nothing more."""
        return self.limit

    @bytes_max.setter
    def bytes_max(self, Py_ssize_t bytes_max):
        self.limit = bytes_max
        self.set_safe_end()

    @property
    def count(self):
        """Messages in it."""
        return self.place.count

    @property
    def size(self):
        """Size of the batch if it left uncompressed now."""
        return HEADER_BYTES + self.place.end

    @property
    def first_time_ms(self):
        """Event time of the first message; -1 while there is none."""
        return self.place.first_time_ms if self.place.count else -1

    @property
    def min_time_ms(self):
        """The earliest event time."""
        return self.place.min_time_ms if self.place.count else -1

    @property
    def max_time_ms(self):
        """The latest event time."""
        return self.place.max_time_ms if self.place.count else -1

    def append(self, value, key=None, properties=None, event_time_ms=-1):
        """Frame one message and return its index, or -1 when there is no room for it."""
        if self.sealed:
            raise_sealed()
        if is_plain(<PyObject*>value) and is_plain(<PyObject*>key):
            return self.append_plain(&self.place, value, key, properties, time_of(event_time_ms))
        return self.append_other(&self.place, value, key, properties, None, event_time_ms)

    cdef int append_bytes(self, object value, object key, object properties, int64_t time_ms) except -2:
        """`append` for compiled callers; see `MessageBuffer`."""
        cdef Pair pairs[STACK_PAIRS]
        cdef Py_ssize_t headers_size
        cdef int pair_count
        cdef uint8_t* at
        if self.sealed:
            return NO_ROOM
        if key is None and properties is None:
            at = self.frame_value(&self.place, bytes_of(<PyObject*>value), 1, time_ms)
            if at != NULL:
                at[0] = 0
                return self.place.count - 1
        else:
            headers_size = measure_pairs(properties, pairs, &pair_count)
            if headers_size < 0:
                return NOT_PLAIN
            at = self.frame(&self.place, bytes_of(<PyObject*>value), bytes_of(<PyObject*>key), headers_size, time_ms)
            if at != NULL:
                write_pairs(at, pairs, pair_count)
                return self.place.count - 1
        return NO_ROOM if self.refusal == FULL else NOT_PLAIN

    def extend_list(self, values, keys, properties, times_ms, bytes common not None, Py_ssize_t start):
        """Frame values from `start` on until one has no room; return how many. A bad one leaves nothing behind."""
        cdef bint one_time = isinstance(times_ms, int)
        cdef const int64_t[::1] times = None if one_time else times_ms
        cdef Py_ssize_t framed, i = start, stop = len(values)
        cdef Place place = self.place
        cdef Run run
        if self.sealed:
            raise_sealed()
        values = values if type(values) is list else list(values)
        keys = keys if keys is None or type(keys) is list else list(keys)
        properties = properties if properties is None or type(properties) is list else list(properties)
        run.has_keys = keys is not None
        run.time_ms = plain_time(times_ms) if one_time else -1
        run.headers = bytes_of(<PyObject*>common)
        while i < stop:
            run.times = NULL if one_time else &times[i]
            run.count = point_at_items(&run, values, keys, i, stop)
            if properties is None:
                framed = self.frame_run(&place, &run)
            else:
                framed = self.frame_run_with_dicts(&place, &run, properties, i)
            i += framed
            if framed < run.count:
                self.raise_refusal(-1)
                break
            if not run.count:  # the next is not plain
                value = <object>item(<PyObject*>values, i)
                key = <object>item(<PyObject*>keys, i)
                own = <object>item(<PyObject*>properties, i)
                headers = common if properties is None else None
                if self.append_other(&place, value, key, own, headers, times_ms if one_time else times[i]) < 0:
                    break
                i += 1
        self.place = place
        return i - start

    def extend_columns(self, columns, bytes common not None, Py_ssize_t start):
        """The same from bare buffers, without the interpreter lock."""
        cdef const int64_t[::1] times = columns.times_ms
        cdef Py_ssize_t framed = 0, i = start, stop = times.shape[0]
        cdef Strings values = strings_of(columns.values)
        cdef Strings keys, names, contents, pairs
        cdef bint has_pairs = columns.properties is not None
        cdef Place place = self.place
        cdef Run run
        if self.sealed:
            raise_sealed()
        run.count = 0
        run.has_keys = columns.keys is not None
        run.headers = bytes_of(<PyObject*>common)
        if run.has_keys:
            keys = strings_of(columns.keys)
        if has_pairs:
            pairs = ranges_of(columns.properties)
            names = strings_of(columns.properties.names)
            contents = strings_of(columns.properties.values)
        with nogil:
            while i < stop and framed == run.count:
                run.times = &times[i]
                run.count = point_at_strings(&run, &values, &keys, i, stop)
                if has_pairs:
                    framed = self.frame_run_with_pairs(&place, &run, &pairs, &names, &contents, i)
                else:
                    framed = self.frame_run(&place, &run)
                i += framed
                if not run.count:
                    self.refusal = TIME
                    break
        if i < stop:
            self.raise_refusal(times[i])
        self.place = place
        return i - start

    def insert_header(self, bytes header not None):
        """Put one framed header in front of the first record's own."""
        cdef Walk walk
        cdef Py_ssize_t body_at, count_at, added, length_size, old_length_size, header_size = len(header)
        cdef int64_t count
        cdef uint64_t length
        cdef uint8_t* at
        if self.views:
            raise BufferError("the records are still held by somebody; they cannot be moved")
        if self.dropped:
            raise_dropped()
        begin_walk(&walk, self.data, self.place.end)
        enter(&walk)
        body_at = walk.at
        skip_to_headers(&walk)
        count_at = walk.at
        count = varint(&walk, 32, HEADER_COUNT)
        if walk.fault.kind:
            raise_fault(&walk.fault)
        added = varint_size(zigzag(count + 1)) - (walk.at - count_at) + header_size
        length = zigzag(walk.end - body_at + added)
        length_size = varint_size(length)
        old_length_size = body_at
        if not self.room(self.place.end + added + length_size - old_length_size):
            raise MemoryError
        memmove(
            self.data + walk.at + added + length_size - old_length_size, self.data + walk.at, self.place.end - walk.at
        )
        memmove(self.data + length_size, self.data + body_at, count_at - body_at)
        at = write_varint(self.data + length_size + count_at - body_at, zigzag(count + 1))
        memcpy(at, PyBytes_AS_STRING(header), header_size)
        write_varint(self.data, length)
        self.place.end += added + length_size - old_length_size

    def records(self):
        """The framed records; while somebody holds this view the buffer is not cleared."""
        return memoryview(self)

    def drop_records(self):
        """Give the records' memory back; count, size and times stay. A view that is held keeps it until released."""
        self.dropped = self.place.end > 0
        if not self.views:
            self.give_back()

    def clear(self):
        """Forget the messages and open it anew; BufferError while a view of the records is held."""
        if self.views:
            raise BufferError("the records are still held by somebody; the buffer cannot be used again yet")
        self.give_back()
        self.place = Place(0, 0, -1, -1, -1)
        self.dropped = self.sealed = False

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self.dropped:
            raise_dropped()
        PyBuffer_FillInfo(view, self, self.data if self.data != NULL else <uint8_t*>b"", self.place.end, 1, flags)
        self.views += 1
        self.set_safe_end()

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1
        if self.dropped and not self.views:
            self.give_back()
        self.set_safe_end()

    @cython.final
    cdef int raise_refusal(self, time_ms) except -2:
        """Why a message was not taken: an error, or -1 when there is no room for it."""
        if self.refusal == TIME:
            checked_time(time_ms)
        if self.refusal == TOO_LARGE:
            raise_too_large()
        if self.refusal == NO_MEMORY:
            raise MemoryError
        if self.refusal == HELD:
            raise BufferError("the records are held by somebody; the batch takes no message meanwhile")
        return -1

    @cython.final
    cdef inline int append_plain(self, Place* place, value, key, properties, int64_t time_ms) except -2:
        """Frame a message of bytes; its index, or -1. No foreign code runs unless its properties are no plain dict."""
        cdef Pair pairs[STACK_PAIRS]
        cdef Py_ssize_t headers_size
        cdef int pair_count
        cdef uint8_t* at
        headers_size = measure_pairs(properties, pairs, &pair_count)
        if headers_size < 0:
            return self.append_other(place, value, key, properties, None, time_ms)
        at = self.frame(place, bytes_of(<PyObject*>value), bytes_of(<PyObject*>key), headers_size, time_ms)
        if at == NULL:
            return self.raise_refusal(time_ms)
        write_pairs(at, pairs, pair_count)
        return place.count - 1

    @cython.final
    cdef int append_other(self, Place* place, value, key, properties, bytes headers, time_ms) except -2:
        """The same for what foreign code may have to turn into bytes first; `headers` are properties framed already."""
        value_bytes = _bytes("value", value)
        key_bytes = _bytes("key", key)
        cdef int64_t checked_ms = time_of(time_ms)
        cdef uint8_t* at
        if headers is None:
            headers = frame_properties(properties)
        if self.sealed:
            raise_sealed()
        at = self.frame(
            place, bytes_of(<PyObject*>value_bytes), bytes_of(<PyObject*>key_bytes), PyBytes_GET_SIZE(headers), checked_ms
        )
        if at == NULL:
            return self.raise_refusal(time_ms)
        copy(at, PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers))
        return place.count - 1

    @cython.final
    cdef Py_ssize_t frame_run(self, Place* current, const Run* run) noexcept nogil:
        """Frame these until one is not taken; return how many."""
        cdef Place place = current[0]  # a copy nobody else points at stays in registers
        cdef Bytes headers = run.headers
        cdef int64_t time_ms = run.time_ms
        cdef Py_ssize_t i = 0
        cdef uint8_t* at
        while i < run.count:
            if run.times != NULL:
                time_ms = run.times[i]
            if run.has_keys:
                at = self.frame(&place, run.values[i], run.keys[i], headers.size, time_ms)
            else:
                at = self.frame_value(&place, run.values[i], headers.size, time_ms)
            if at == NULL:
                break
            copy(at, headers.data, headers.size)
            i += 1
        current[0] = place
        return i

    @cython.final
    cdef Py_ssize_t frame_run_with_dicts(self, Place* place, Run* run, list properties, Py_ssize_t begin) noexcept:
        """The same with properties of their own; the run is cut short where these are no plain dict."""
        cdef Pair pairs[STACK_PAIRS]
        cdef Bytes key = Bytes(NULL, -1)
        cdef Py_ssize_t headers_size, i = 0
        cdef int pair_count
        cdef uint8_t* at
        while i < run.count:
            headers_size = measure_pairs(<object>item(<PyObject*>properties, begin + i), pairs, &pair_count)
            if headers_size < 0:
                run.count = i
                break
            if run.has_keys:
                key = run.keys[i]
            at = self.frame(place, run.values[i], key, headers_size, run.time_ms if run.times == NULL else run.times[i])
            if at == NULL:
                break
            write_pairs(at, pairs, pair_count)
            i += 1
        return i

    @cython.final
    cdef Py_ssize_t frame_run_with_pairs(
        self, Place* place, const Run* run, const Strings* pairs, const Strings* names, const Strings* contents,
        Py_ssize_t begin,
    ) noexcept nogil:
        """The same with the properties of columns; these messages begin there at `begin`."""
        cdef Bytes key = Bytes(NULL, -1)
        cdef Py_ssize_t headers_size, i = 0
        cdef uint8_t* at
        while i < run.count:
            if run.has_keys:
                key = run.keys[i]
            headers_size = framed_pairs_size(pairs, names, contents, begin + i)
            at = self.frame(place, run.values[i], key, headers_size, run.times[i])
            if at == NULL:
                break
            frame_pairs(at, pairs, names, contents, begin + i)
            i += 1
        return i

    @cython.final
    cdef inline uint8_t* frame_value(
        self, Place* place, Bytes value, Py_ssize_t headers_size, int64_t time_ms
    ) noexcept nogil:
        """`frame` without a key. Most are of one shape, where the time takes one byte and all other numbers two."""
        cdef uint64_t delta = zigzag(time_ms - place.first_time_ms)
        cdef uint64_t number = <uint64_t>place.count << 1
        cdef uint64_t value_length = <uint64_t>value.size << 1
        cdef uint64_t length = value_length + (<uint64_t>(7 + headers_size) << 1)
        cdef Py_ssize_t end = place.end + 2 + <Py_ssize_t>(length >> 1)
        cdef Place other
        cdef uint8_t* at
        if not (
            delta < 0x80 and takes_two(number) and takes_two(value_length) and takes_two(length) and end <= self.safe_end
        ):
            other = place[0]
            at = self.frame(&other, value, Bytes(NULL, -1), headers_size, time_ms)
            place[0] = other
            return at
        at = self.data + place.end
        write_word(at, in_two(length) | delta << 24 | in_two(number) << 32 | <uint64_t>1 << 48 | in_two(value_length) << 56)
        at[8] = <uint8_t>(value_length >> 7)
        place.end = end
        place.count += 1
        place.min_time_ms = min(place.min_time_ms, time_ms)
        place.max_time_ms = max(place.max_time_ms, time_ms)
        return copy(at + 9, value.data, value.size)

    @cython.final
    cdef inline uint8_t* frame(
        self, Place* place, Bytes value, Bytes key, Py_ssize_t headers_size, int64_t time_ms
    ) noexcept nogil:
        """Frame a record up to its headers and return where these go; NULL, with `refusal` set, when it is not taken."""
        cdef uint64_t delta, length, number = <uint64_t>place.count << 1
        cdef Py_ssize_t size
        cdef uint8_t* at
        if not number:
            place.first_time_ms = place.min_time_ms = place.max_time_ms = time_ms
        delta = zigzag(time_ms - place.first_time_ms)
        size = 1 + varint_size(delta) + varint_size(number) + framed_size(key) + framed_size(value) + headers_size
        length = <uint64_t>size << 1
        size += varint_size(length)
        if place.end + size > self.safe_end and not self.admit(place.end, place.count, size):
            return NULL
        at = write_varint(self.data + place.end, length)
        at[0] = 0
        at = write_varint(at + 1, delta)
        at = write_varint(at, number)
        at = write_string(at, key)
        at = write_string(at, value)
        place.end += size
        place.count += 1
        place.min_time_ms = min(place.min_time_ms, time_ms)
        place.max_time_ms = max(place.max_time_ms, time_ms)
        return at

    @cython.final
    cdef bint admit(self, Py_ssize_t end, int count, Py_ssize_t size) noexcept nogil:
        """Whether a record of this size can be taken; makes room for it, or sets `refusal`."""
        self.refusal = NONE
        if size > RECORD_BYTES_MAX:
            self.refusal = TOO_LARGE
        elif count and HEADER_BYTES + end + size > self.limit:
            self.refusal = FULL
        elif self.views or self.dropped:
            self.refusal = HELD
        elif not self.room(end + size):
            self.refusal = NO_MEMORY
        return self.refusal == NONE

    @cython.final
    cdef bint room(self, Py_ssize_t wanted) noexcept nogil:
        """Make room for so many bytes; doubling, but not past the limit of the batch unless this message needs it."""
        cdef Py_ssize_t capacity
        cdef uint8_t* data
        if self.data == NULL:
            self.take_spare()
        if wanted <= self.capacity:
            return True
        capacity = max(2 * self.capacity, <Py_ssize_t>FIRST_CAPACITY)
        capacity = max(min(capacity, self.limit), wanted)
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            return False
        self.data = data
        self.capacity = capacity
        self.set_safe_end()
        return True

    @cython.final
    cdef void take_spare(self) noexcept with gil:
        """Begin with memory that another batch gave back, if there is some; it may be more than this one may fill."""
        global spare_count
        if spare_count:
            spare_count -= 1
            self.data, self.capacity = spares[spare_count].data, spares[spare_count].capacity
            self.set_safe_end()

    @cython.final
    cdef void give_back(self) noexcept:
        """Let go of the memory, for another batch to take unless there is enough of it."""
        global spare_count
        if self.data == NULL:
            return
        if spare_count < SPARES_MAX and self.capacity <= SPARE_BYTES_MAX:
            spares[spare_count] = Block(self.data, self.capacity)
            spare_count += 1
        else:
            free(self.data)
        self.data = NULL
        self.capacity = 0
        self.set_safe_end()

    @cython.final
    cdef void set_safe_end(self) noexcept nogil:
        self.safe_end = 0 if self.views else min(self.capacity, self.limit - HEADER_BYTES, RECORD_BYTES_MAX)


# Memory that batches gave back, the last one on top. The interpreter lock guards the following.
cdef Block spares[SPARES_MAX]
cdef int spare_count = 0


cdef inline int64_t time_of(event_time_ms) except -2:
    """An event time; the plain twin's check, called only where it will not pass, tells what is wrong with it."""
    cdef int64_t time_ms = plain_time(event_time_ms)
    return time_ms if time_ms != -2 else checked_time(event_time_ms)


cdef inline int64_t plain_time(event_time_ms) noexcept:
    """An event time, or -2 for what the plain twin must judge."""
    cdef int overflow = 0
    cdef int64_t time_ms
    if event_time_ms is NO_TIME:
        return -1
    if not PyLong_CheckExact(event_time_ms):
        return -2
    time_ms = PyLong_AsLongLongAndOverflow(event_time_ms, &overflow)
    return time_ms if is_time(time_ms) and not overflow else -2


cdef inline bint is_time(int64_t time_ms) noexcept nogil:
    return time_ms >= -1 and time_ms < TIME_MS_MAX


cdef inline bint is_plain(PyObject* data) noexcept:
    return PyBytes_CheckExact(<object>data) or <object>data is None


cdef inline Bytes bytes_of(PyObject* data) noexcept:
    """Point at what is plain."""
    if <object>data is None:
        return Bytes(NULL, -1)
    return Bytes(<const uint8_t*>PyBytes_AS_STRING(<object>data), PyBytes_GET_SIZE(<object>data))


cdef inline Py_ssize_t point_at_items(Run* run, list values, keys, Py_ssize_t begin, Py_ssize_t stop) noexcept:
    """Point at items from `begin` on; return how many there are before one that is not plain."""
    cdef Py_ssize_t i, count = min(<Py_ssize_t>RUN, stop - begin)
    cdef PyObject* data
    for i in range(count):
        data = item(<PyObject*>values, begin + i)
        if not is_plain(data):
            count = i
            break
        run.values[i] = bytes_of(data)
    if run.has_keys:
        for i in range(count):
            data = item(<PyObject*>keys, begin + i)
            if not is_plain(data):
                count = i
                break
            run.keys[i] = bytes_of(data)
    return count_timely(run, count)


cdef inline Py_ssize_t point_at_strings(
    Run* run, const Strings* values, const Strings* keys, Py_ssize_t begin, Py_ssize_t stop
) noexcept nogil:
    """The same for strings of columns."""
    cdef Py_ssize_t i, count = min(<Py_ssize_t>RUN, stop - begin)
    for i in range(count):
        run.values[i] = string_at(values, begin + i)
    if run.has_keys:
        for i in range(count):
            run.keys[i] = string_at(keys, begin + i)
    return count_timely(run, count)


cdef inline Py_ssize_t count_timely(const Run* run, Py_ssize_t count) noexcept nogil:
    """How many messages there are before one whose event time no log can hold."""
    cdef Py_ssize_t i
    if run.times == NULL:
        return count if is_time(run.time_ms) else 0
    for i in range(count):
        if not is_time(run.times[i]):
            return i
    return count


cdef inline PyObject* item(PyObject* items, Py_ssize_t i) noexcept:
    """Item i of a list, borrowed; None where there is no list, and past the end of one that foreign code cut."""
    if <object>items is None or i >= PyList_GET_SIZE(items):
        return <PyObject*>None
    return PyList_GET_ITEM(items, i)


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline bint takes_two(uint64_t number) noexcept nogil:
    """Whether a varint of this number takes just two bytes."""
    return number - 0x80 < 0x4000 - 0x80


cdef inline uint64_t in_two(uint64_t number) noexcept nogil:
    return (number & 0x7F) | 0x80 | number >> 7 << 8


cdef inline int varint_size(uint64_t zigzag) noexcept nogil:
    return 1 if zigzag < 0x80 else 2 if zigzag < 0x4000 else long_varint_size(zigzag)


cdef int long_varint_size(uint64_t rest) noexcept nogil:
    cdef int size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline Py_ssize_t framed_size(Bytes string) noexcept nogil:
    """Size of a string behind its length."""
    return varint_size(<uint64_t>string.size << 1) + string.size if string.size >= 0 else 1


cdef inline uint8_t* write_varint(uint8_t* at, uint64_t rest) noexcept nogil:
    if rest < 0x80:
        at[0] = <uint8_t>rest
        return at + 1
    if rest < 0x4000:
        at[0] = <uint8_t>(rest | 0x80)
        at[1] = <uint8_t>(rest >> 7)
        return at + 2
    return write_long_varint(at, rest)


cdef uint8_t* write_long_varint(uint8_t* at, uint64_t rest) noexcept nogil:
    while rest > 0x7F:
        at[0] = <uint8_t>(rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1


cdef inline uint8_t* write_string(uint8_t* at, Bytes string) noexcept nogil:
    """A string behind its length."""
    if string.size < 0:
        at[0] = 1
        return at + 1
    return copy(write_varint(at, <uint64_t>string.size << 1), string.data, string.size)


cdef inline uint8_t* copy(uint8_t* to, const void* data, Py_ssize_t size) noexcept nogil:
    """Copy and return the end. A short string goes in two moves that may overlap: a call costs more than its bytes."""
    cdef const uint8_t* source = <const uint8_t*>data
    if size >= 8:
        if size > 32:
            memcpy(to, source, size)
        elif size >= 16:
            memcpy(to, source, 16)
            memcpy(to + size - 16, source + size - 16, 16)
        else:
            memcpy(to, source, 8)
            memcpy(to + size - 8, source + size - 8, 8)
    elif size >= 4:
        memcpy(to, source, 4)
        memcpy(to + size - 4, source + size - 4, 4)
    elif size >= 2:
        memcpy(to, source, 2)
        memcpy(to + size - 2, source + size - 2, 2)
    elif size == 1:
        to[0] = source[0]
    return to + size


cdef inline Py_ssize_t measure_pairs(properties, Pair* pairs, int* count) noexcept:
    """Point at the names and values of a dict and return their framed size; -1: leave it to the plain twin."""
    count[0] = 0
    if properties is None:
        return 1
    if not PyDict_CheckExact(properties) or len(<dict>properties) > STACK_PAIRS:
        return -1
    return measure_dict(<dict>properties, pairs, count)


cdef Py_ssize_t measure_dict(dict properties, Pair* pairs, int* count) noexcept:
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t position = 0, size = 0
    cdef Pair* pair = pairs
    while PyDict_Next(properties, &position, &name, &value):
        if not PyUnicode_Check(<object>name) or not point_at_text(&pair.name, name):
            return -1
        if is_plain(value):
            pair.value = bytes_of(value)
        elif not PyUnicode_Check(<object>value) or not point_at_text(&pair.value, value):
            return -1
        size += framed_size(pair.name) + framed_size(pair.value)
        pair += 1
    count[0] = <int>(pair - pairs)
    return size + varint_size(<uint64_t>count[0] << 1)


cdef inline bint point_at_text(Bytes* string, PyObject* text) noexcept:
    """Point at a text's UTF-8, which the text itself keeps; False when it has none."""
    if PyUnicode_IS_COMPACT_ASCII(text):
        string[0] = Bytes(<const uint8_t*>PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text))
        return True
    string.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(text, &string.size)
    if string.data == NULL:
        PyErr_Clear()
    return string.data != NULL


cdef inline void write_pairs(uint8_t* at, const Pair* pairs, int count) noexcept nogil:
    cdef int i
    at = write_varint(at, <uint64_t>count << 1)
    for i in range(count):
        at = write_string(write_string(at, pairs[i].name), pairs[i].value)


cdef Strings strings_of(column) except *:
    """Pointers into a column; the column's arrays, held by the caller, keep them valid."""
    cdef const uint8_t[::1] data = column.data
    cdef Strings strings = ranges_of(column)
    strings.data = &data[0] if data.shape[0] else NULL
    return strings


cdef Strings ranges_of(column) except *:
    cdef const int32_t[::1] offsets = column.offsets
    cdef const uint8_t[::1] validity
    cdef Strings strings
    strings.offsets = &offsets[0]
    strings.data = NULL
    strings.validity = NULL
    strings.bit_offset = column.bit_offset
    if column.validity is not None:
        validity = column.validity
        if validity.shape[0] * 8 < column.bit_offset + offsets.shape[0] - 1:
            raise ValueError("columns: the validity bitmap is shorter than its column")
        strings.validity = &validity[0]
    return strings


cdef inline bint is_valid(const Strings* strings, Py_ssize_t i) noexcept nogil:
    cdef Py_ssize_t bit = strings.bit_offset + i
    return strings.validity == NULL or (strings.validity[bit >> 3] >> (bit & 7)) & 1


cdef inline Py_ssize_t string_size(const Strings* strings, Py_ssize_t i) noexcept nogil:
    return strings.offsets[i + 1] - strings.offsets[i] if is_valid(strings, i) else -1


cdef inline Bytes string_at(const Strings* strings, Py_ssize_t i) noexcept nogil:
    return Bytes(strings.data + strings.offsets[i], string_size(strings, i))


cdef Py_ssize_t framed_pairs_size(
    const Strings* pairs, const Strings* names, const Strings* contents, Py_ssize_t i
) noexcept nogil:
    cdef Py_ssize_t pair, count = max(string_size(pairs, i), <Py_ssize_t>0)
    cdef Py_ssize_t size = varint_size(<uint64_t>count << 1)
    for pair in range(pairs.offsets[i], pairs.offsets[i] + count):
        size += framed_size(string_at(names, pair)) + framed_size(string_at(contents, pair))
    return size


cdef void frame_pairs(
    uint8_t* at, const Strings* pairs, const Strings* names, const Strings* contents, Py_ssize_t i
) noexcept nogil:
    cdef Py_ssize_t pair, count = max(string_size(pairs, i), <Py_ssize_t>0)
    at = write_varint(at, <uint64_t>count << 1)
    for pair in range(pairs.offsets[i], pairs.offsets[i] + count):
        at = write_string(write_string(at, string_at(names, pair)), string_at(contents, pair))


# ---------------------------------------------------------------------------------------------------------------------
# Gathering

cdef enum Field:
    LENGTH = 0
    ATTRIBUTES = 1
    TIMESTAMP_DELTA = 2
    OFFSET_DELTA = 3
    KEY_LENGTH = 4
    VALUE_LENGTH = 5
    HEADER_COUNT = 6
    HEADER_NAME_LENGTH = 7
    HEADER_VALUE_LENGTH = 8
    END = 9

cdef enum Kind:
    CUT = 1
    LONG = 2
    RANGE = 3
    LEFT_OVER = 4

cdef struct CFault:
    int kind
    int field
    Py_ssize_t offset
    int64_t low
    int64_t high
    int64_t found

cdef struct Walk:
    const uint8_t* data
    Py_ssize_t size
    Py_ssize_t at
    Py_ssize_t end
    int record
    CFault fault

cdef struct Sizes:
    Py_ssize_t keys
    Py_ssize_t key_bytes
    Py_ssize_t values
    Py_ssize_t value_bytes
    Py_ssize_t pairs
    Py_ssize_t name_bytes
    Py_ssize_t contents
    Py_ssize_t content_bytes

cdef struct Target:
    int32_t* offsets
    uint8_t* data
    uint8_t* validity


def gather(payload, int count, int64_t base_offset, int64_t base_time_ms):
    """The fields of `count` records as columns; see the plain twin."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return gather_from(<const uint8_t*>view.buf, view.len, count, base_offset, base_time_ms)
    finally:
        PyBuffer_Release(&view)


cdef gather_from(const uint8_t* data, Py_ssize_t size, int count, int64_t base_offset, int64_t base_time_ms):
    cdef Walk walk
    cdef Sizes sizes
    cdef Target keys, values, names, contents
    cdef int64_t* position_at
    cdef int64_t* time_at
    cdef int32_t* pair_ends = NULL
    begin_walk(&walk, data, size)
    with nogil:
        measure(&walk, count, &sizes)
    if walk.fault.kind:
        raise_fault(&walk.fault, walk.record)
    positions, times = np.empty(count, INT64), np.empty(count, INT64)
    position_at, time_at = <int64_t*>memory_of(positions), <int64_t*>memory_of(times)
    value_column = new_column(&values, count, sizes.value_bytes, sizes.values < count)
    key_column = new_column(&keys, count, sizes.key_bytes, sizes.keys < count) if sizes.keys else None
    pair_column = None
    if sizes.pairs:
        ends = np.empty(count + 1, INT32)
        pair_ends = <int32_t*>memory_of(ends)
        pair_ends[0] = 0
        pair_column = MapColumn(
            ends,
            new_column(&names, sizes.pairs, sizes.name_bytes, False),
            new_column(&contents, sizes.pairs, sizes.content_bytes, sizes.contents < sizes.pairs),
        )
    with nogil:
        copy_fields(
            data, count, base_offset, base_time_ms, position_at, time_at,
            &keys if sizes.keys else NULL, &values, pair_ends, &names, &contents,
        )
    return BufferColumns(times, value_column, key_column, pair_column, positions)


cdef void copy_fields(
    const uint8_t* at, int count, int64_t base_offset, int64_t base_time_ms, int64_t* positions, int64_t* times,
    Target* keys, Target* values, int32_t* pair_ends, Target* names, Target* contents,
) noexcept nogil:
    """The second pass: every length is known to be good, so nothing is checked."""
    cdef int i
    cdef int64_t pairs
    cdef Py_ssize_t pair = 0
    for i in range(count):
        take_varint(&at)
        at += 1
        times[i] = <int64_t>(<uint64_t>base_time_ms + <uint64_t>take_varint(&at))
        positions[i] = <int64_t>(<uint64_t>base_offset + <uint64_t>take_varint(&at))
        at = take_string(at, keys, i)
        at = take_string(at, values, i)
        pairs = take_varint(&at)
        while pairs > 0:
            at = take_string(at, names, pair)
            at = take_string(at, contents, pair)
            pair += 1
            pairs -= 1
        if pair_ends != NULL:
            pair_ends[i + 1] = <int32_t>pair


cdef inline int64_t take_varint(const uint8_t** at) noexcept nogil:
    cdef uint64_t raw = at[0][0]
    cdef int shift = 7
    at[0] += 1
    if raw < 0x80:
        return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    raw &= 0x7F
    while at[0][0] & 0x80:
        raw |= <uint64_t>(at[0][0] & 0x7F) << shift
        shift += 7
        at[0] += 1
    raw |= <uint64_t>at[0][0] << shift
    at[0] += 1
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)


cdef inline const uint8_t* take_string(const uint8_t* at, Target* target, Py_ssize_t i) noexcept nogil:
    cdef int64_t size = take_varint(&at)
    if target == NULL:
        return at
    if size < 0:
        target.offsets[i + 1] = target.offsets[i]
        return at
    if target.validity != NULL:
        target.validity[i >> 3] |= <uint8_t>(1 << (i & 7))
    copy(target.data + target.offsets[i], at, size)
    target.offsets[i + 1] = target.offsets[i] + <int32_t>size
    return at + size


cdef new_column(Target* target, Py_ssize_t count, Py_ssize_t size, bint with_nulls):
    """An empty column, and where its strings go."""
    offsets = np.empty(count + 1, INT32)
    data = np.empty(size, UINT8) if size else NO_BYTES
    validity = np.zeros((count + 7) >> 3, UINT8) if with_nulls else None
    target.offsets = <int32_t*>memory_of(offsets)
    target.offsets[0] = 0
    target.data = <uint8_t*>memory_of(data)
    target.validity = <uint8_t*>memory_of(validity) if with_nulls else NULL
    return BinaryColumn(offsets, data, validity)


cdef void* memory_of(array) except? NULL:
    """Where an array that was just made has its items; valid as long as it lives."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf


cdef void measure(Walk* walk, int count, Sizes* sizes) noexcept nogil:
    """The first pass: every field within its record, and how much of each there is."""
    cdef int64_t pairs, size
    sizes[0] = Sizes(0, 0, 0, 0, 0, 0, 0, 0)
    while walk.record < count:
        enter(walk)
        byte(walk, ATTRIBUTES)
        varint(walk, 64, TIMESTAMP_DELTA)
        varint(walk, 32, OFFSET_DELTA)
        size = string(walk, KEY_LENGTH, -1)
        if size >= 0:
            sizes.keys += 1
            sizes.key_bytes += size
        size = string(walk, VALUE_LENGTH, -1)
        if size >= 0:
            sizes.values += 1
            sizes.value_bytes += size
        pairs = number(walk, HEADER_COUNT, 0, (walk.end - walk.at) // PAIR_BYTES_MIN, 0)
        while pairs > 0 and not walk.fault.kind:
            sizes.name_bytes += string(walk, HEADER_NAME_LENGTH, 0)
            size = string(walk, HEADER_VALUE_LENGTH, -1)
            if size >= 0:
                sizes.contents += 1
                sizes.content_bytes += size
            sizes.pairs += 1
            pairs -= 1
        if walk.fault.kind:
            return
        if walk.at != walk.end:
            fail(walk, LEFT_OVER, END, walk.at, 0, 0, walk.end - walk.at)
            return
        walk.record += 1
    if walk.at != walk.size:
        fail(walk, LEFT_OVER, END, walk.at, 0, 0, walk.size - walk.at)


cdef void begin_walk(Walk* walk, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    walk.data = data
    walk.size = walk.end = size
    walk.at = 0
    walk.record = 0
    walk.fault.kind = 0


cdef void skip_to_headers(Walk* walk) noexcept nogil:
    byte(walk, ATTRIBUTES)
    varint(walk, 64, TIMESTAMP_DELTA)
    varint(walk, 32, OFFSET_DELTA)
    string(walk, KEY_LENGTH, -1)
    string(walk, VALUE_LENGTH, -1)


cdef inline void fail(
    Walk* walk, int kind, int field, Py_ssize_t offset, int64_t low, int64_t high, int64_t found
) noexcept nogil:
    """Note the first fault; after it every step stands still."""
    if not walk.fault.kind:
        walk.fault = CFault(kind, field, offset, low, high, found)


cdef inline void enter(Walk* walk) noexcept nogil:
    cdef Py_ssize_t begin = walk.at
    cdef int64_t length
    walk.end = walk.size
    length = varint(walk, 32, LENGTH)
    if not walk.fault.kind and (length < RECORD_BYTES_MIN - 1 or length > walk.end - walk.at):
        fail(walk, RANGE, LENGTH, begin, RECORD_BYTES_MIN - 1, walk.end - walk.at, length)
    if not walk.fault.kind:
        walk.end = walk.at + length


cdef inline void byte(Walk* walk, int field) noexcept nogil:
    if walk.fault.kind:
        return
    if walk.at >= walk.end:
        fail(walk, CUT, field, walk.at, 0, walk.end, 0)
        return
    walk.at += 1


cdef inline int64_t varint(Walk* walk, int bits, int field) noexcept nogil:
    cdef Py_ssize_t begin = walk.at
    cdef uint64_t raw = 0
    cdef uint8_t part
    cdef int shift = 0
    if walk.fault.kind:
        return 0
    while True:
        if walk.at >= walk.end:
            fail(walk, CUT, field, begin, 0, walk.end, 0)
            return 0
        part = walk.data[walk.at]
        walk.at += 1
        if (shift + 7 > bits and (part & 0x7F) >> (bits - shift)) or (part & 0x80 and shift + 7 >= bits):
            fail(walk, LONG, field, begin, 0, bits, 0)
            return 0
        raw |= <uint64_t>(part & 0x7F) << shift
        if not part & 0x80:
            return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
        shift += 7


cdef inline int64_t number(Walk* walk, int field, int64_t low, int64_t high, int64_t otherwise) noexcept nogil:
    cdef Py_ssize_t begin = walk.at
    cdef int64_t found = varint(walk, 32, field)
    if walk.fault.kind:
        return otherwise
    if found < low or found > high:
        fail(walk, RANGE, field, begin, low, high, found)
        return otherwise
    return found


cdef inline int64_t string(Walk* walk, int field, int64_t low) noexcept nogil:
    """Step over a string and return its size, -1 for null or after a fault."""
    cdef Py_ssize_t begin = walk.at
    cdef int64_t size = varint(walk, 32, field)
    if walk.fault.kind:
        return -1
    if size < low or size > walk.end - walk.at:
        fail(walk, RANGE, field, begin, low, walk.end - walk.at, size)
        return -1
    if size > 0:
        walk.at += size
    return size


cdef int raise_fault(CFault* fault, int record=0) except -1:
    raise fault_error(Fault(fault.kind, fault.field, record, fault.offset, fault.low, fault.high, fault.found))
