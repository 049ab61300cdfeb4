# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `batch`: the same two things, framing records and gathering their fields, the same results.

What differs: bytes lie in C memory, and the interpreter lock is released where no Python object is touched (columns in
and out). Memory safety rests on three rules. `append` and `extend_list` hold the lock and run no foreign code between
taking a pointer and copying from it. Memory moves only in `room`, and nothing is framed while a view of it is
held. Gathering first measures every field within the end of its record, and only then copies.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

import numpy as np

from penstock.wire.columns import NO_BYTES, BinaryColumn, BufferColumns, MapColumn
from penstock.wire.kafka.batch import (
    TIME_MS_MAX as _TIME_MS_MAX,
    _bytes,
    raise_sealed,
    raise_time,
    raise_too_large,
)
from penstock.wire.kafka import layout
from penstock.wire.kafka.faults import Fault, fault_error
from penstock.wire.kafka.framing import frame_properties

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*)
    void PyErr_Clear()

cdef extern from *:
    """
    static inline int penstock_varint_size(uint64_t zigzag) {
        return (63 - __builtin_clzll(zigzag | 1)) / 7 + 1;
    }
    """
    int varint_size "penstock_varint_size"(uint64_t zigzag) noexcept nogil

cdef Py_ssize_t HEADER_BYTES = layout.BATCH_HEADER_BYTES
cdef Py_ssize_t RECORD_BYTES_MIN = layout.RECORD_BYTES_MIN
cdef Py_ssize_t PAIR_BYTES_MIN = layout.HEADER_BYTES_MIN
cdef int64_t RECORD_BYTES_MAX = layout.RECORD_BYTES_MAX
cdef int64_t TIME_MS_MAX = _TIME_MS_MAX

cdef enum:
    STACK_PAIRS = 24
    FIRST_CAPACITY = 4096

cdef enum Refusal:
    NONE = 0
    FULL = 1
    TIME = 2
    TOO_LARGE = 3
    NO_MEMORY = 4
    HELD = 5

cdef struct Pair:
    const char* name
    Py_ssize_t name_size
    const char* value
    Py_ssize_t value_size

cdef struct Strings:
    const int32_t* offsets
    const uint8_t* data
    const uint8_t* validity
    Py_ssize_t bit_offset

cdef struct Place:
    Py_ssize_t end
    int count
    int64_t first_time_ms
    int64_t min_time_ms
    int64_t max_time_ms


# ---------------------------------------------------------------------------------------------------------------------
# Framing


cdef class RecordBuffer:
    """The records of a batch being written; see the plain twin."""

    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t end
    cdef Py_ssize_t views
    cdef Refusal refusal
    cdef readonly Py_ssize_t bytes_max
    cdef readonly int count
    cdef readonly int64_t first_time_ms
    cdef readonly int64_t min_time_ms
    cdef readonly int64_t max_time_ms
    cdef public bint sealed

    def __init__(self, Py_ssize_t bytes_max=262_144):
        self.bytes_max = bytes_max
        self.clear()

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.count

    @property
    def size(self):
        """Size of the batch if it left uncompressed now."""
        return HEADER_BYTES + self.end

    def append(self, value, key=None, properties=None, int64_t event_time_ms=-1):
        """Frame one message and return its index, or -1 when there is no room for it."""
        cdef Pair pairs[STACK_PAIRS]
        cdef Py_ssize_t headers_size = 1
        cdef int pair_count = 0
        cdef uint8_t* at
        if self.sealed:
            raise_sealed()
        if value is not None and not PyBytes_Check(value):
            value = _bytes("value", value)
        if key is not None and not PyBytes_Check(key):
            key = _bytes("key", key)
        if properties:
            headers_size = measure_pairs(properties, pairs, &pair_count)
            if headers_size < 0:
                return self.append_framed(value, key, frame_properties(properties), event_time_ms)
        at = self.frame_objects(<PyObject*>value, <PyObject*>key, headers_size, event_time_ms)
        if at == NULL:
            self.raise_refusal(event_time_ms)
            return -1
        write_pairs(at, pairs, pair_count)
        return self.count - 1

    def extend_list(self, values, keys, properties, times_ms, bytes common not None, Py_ssize_t start):
        """Frame values from `start` on until one has no room; return how many. A bad one leaves nothing behind."""
        cdef Place before = self.place()
        cdef bint one_time = isinstance(times_ms, int)
        cdef int64_t time_ms = times_ms if one_time else -1
        cdef const int64_t[::1] times = None if one_time else times_ms
        cdef Py_ssize_t i, stop = len(values)
        cdef const uint8_t* headers = <const uint8_t*>PyBytes_AS_STRING(common)
        cdef Py_ssize_t headers_size = PyBytes_GET_SIZE(common)
        cdef uint8_t* at
        if self.sealed:
            raise_sealed()
        values = values if type(values) is list else list(values)
        keys = keys if keys is None or type(keys) is list else list(keys)
        try:
            for i in range(start, stop):
                value = (<list>values)[i] if i < len(<list>values) else None
                key = None if keys is None else (<list>keys)[i] if i < len(<list>keys) else None
                if not one_time:
                    time_ms = times[i]
                if properties is not None:
                    if self.append(value, key, properties[i], time_ms) < 0:
                        return i - start
                    continue
                if value is not None and not PyBytes_Check(value):
                    value = _bytes("value", value)
                if key is not None and not PyBytes_Check(key):
                    key = _bytes("key", key)
                at = self.frame_objects(<PyObject*>value, <PyObject*>key, headers_size, time_ms)
                if at == NULL:
                    self.raise_refusal(time_ms)
                    return i - start
                memcpy(at, headers, headers_size)
        except BaseException:
            self.rewind(before)
            raise
        return stop - start

    def extend_columns(self, columns, bytes common not None, Py_ssize_t start):
        """The same from bare buffers, without the interpreter lock."""
        cdef const int64_t[::1] times = columns.times_ms
        cdef Py_ssize_t i = start, stop = times.shape[0]
        cdef Strings values = strings_of(columns.values)
        cdef bint has_keys = columns.keys is not None
        cdef Strings keys, names, contents, pairs
        cdef bint has_pairs = columns.properties is not None
        cdef const uint8_t* headers = <const uint8_t*>PyBytes_AS_STRING(common)
        cdef Py_ssize_t headers_size = PyBytes_GET_SIZE(common)
        cdef Py_ssize_t size, key_size = -1
        cdef const uint8_t* key = NULL
        cdef uint8_t* at
        cdef Place before = self.place()
        if self.sealed:
            raise_sealed()
        if has_keys:
            keys = strings_of(columns.keys)
        if has_pairs:
            pairs = ranges_of(columns.properties)
            names = strings_of(columns.properties.names)
            contents = strings_of(columns.properties.values)
        with nogil:
            while i < stop:
                size = string_size(&values, i)
                if has_keys:
                    key_size = string_size(&keys, i)
                    key = keys.data + keys.offsets[i]
                if has_pairs:
                    headers_size = framed_pairs_size(&pairs, &names, &contents, i)
                at = self.frame(values.data + values.offsets[i], size, key, key_size, headers_size, times[i])
                if at == NULL:
                    break
                if has_pairs:
                    frame_pairs(at, &pairs, &names, &contents, i)
                else:
                    memcpy(at, headers, headers_size)
                i += 1
        if i < stop:
            try:
                self.raise_refusal(times[i])
            except BaseException:
                self.rewind(before)
                raise
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
        begin_walk(&walk, self.data, self.end)
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
        if not self.room(added + length_size - old_length_size):
            raise MemoryError
        memmove(self.data + walk.at + added + length_size - old_length_size, self.data + walk.at, self.end - walk.at)
        memmove(self.data + length_size, self.data + body_at, count_at - body_at)
        at = write_varint(self.data + length_size + count_at - body_at, zigzag(count + 1))
        memcpy(at, PyBytes_AS_STRING(header), header_size)
        write_varint(self.data, length)
        self.end += added + length_size - old_length_size

    def records(self):
        """The framed records; while somebody holds this view the buffer is not cleared."""
        return memoryview(self)

    def clear(self):
        """Forget the messages and open it anew; BufferError while a view of the records is held."""
        if self.views:
            raise BufferError("the records are still held by somebody; the buffer cannot be used again yet")
        self.end = 0
        self.count = 0
        self.sealed = False
        self.first_time_ms = self.min_time_ms = self.max_time_ms = -1

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data if self.data != NULL else <uint8_t*>b"", self.end, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1

    cdef Place place(self) noexcept:
        return Place(self.end, self.count, self.first_time_ms, self.min_time_ms, self.max_time_ms)

    cdef void rewind(self, Place before) noexcept:
        self.end = before.end
        self.count = before.count
        self.first_time_ms = before.first_time_ms
        self.min_time_ms = before.min_time_ms
        self.max_time_ms = before.max_time_ms

    cdef int raise_refusal(self, int64_t time_ms) except -1:
        if self.refusal == TIME:
            raise_time(time_ms)
        if self.refusal == TOO_LARGE:
            raise_too_large()
        if self.refusal == NO_MEMORY:
            raise MemoryError
        if self.refusal == HELD:
            raise BufferError("the records are held by somebody; the batch takes no message meanwhile")
        return 0

    cdef append_framed(self, value, key, bytes headers, int64_t time_ms):
        cdef uint8_t* at = self.frame_objects(<PyObject*>value, <PyObject*>key, PyBytes_GET_SIZE(headers), time_ms)
        if at == NULL:
            self.raise_refusal(time_ms)
            return -1
        memcpy(at, PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers))
        return self.count - 1

    cdef inline uint8_t* frame_objects(
        self, PyObject* value, PyObject* key, Py_ssize_t headers_size, int64_t time_ms
    ) noexcept:
        cdef const uint8_t* value_at = NULL
        cdef const uint8_t* key_at = NULL
        cdef Py_ssize_t value_size = -1, key_size = -1
        if <object>value is not None:
            value_at = <const uint8_t*>PyBytes_AS_STRING(<object>value)
            value_size = PyBytes_GET_SIZE(<object>value)
        if <object>key is not None:
            key_at = <const uint8_t*>PyBytes_AS_STRING(<object>key)
            key_size = PyBytes_GET_SIZE(<object>key)
        return self.frame(value_at, value_size, key_at, key_size, headers_size, time_ms)

    cdef uint8_t* frame(
        self,
        const uint8_t* value,
        Py_ssize_t value_size,
        const uint8_t* key,
        Py_ssize_t key_size,
        Py_ssize_t headers_size,
        int64_t time_ms,
    ) noexcept nogil:
        """Frame a record up to its headers and return where these go; NULL, with `refusal` set, when it is not taken."""
        cdef uint64_t delta, number, key_length, value_length, length
        cdef Py_ssize_t body, whole
        cdef uint8_t* at
        if time_ms < -1 or time_ms >= TIME_MS_MAX:
            self.refusal = TIME
            return NULL
        delta = zigzag(time_ms - self.first_time_ms) if self.count else 0
        number = zigzag(self.count)
        key_length = zigzag(key_size)
        value_length = zigzag(value_size)
        body = (
            1 + varint_size(delta) + varint_size(number) + varint_size(key_length) + varint_size(value_length)
            + (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0) + headers_size
        )
        length = zigzag(body)
        whole = varint_size(length) + body
        if whole > RECORD_BYTES_MAX:
            self.refusal = TOO_LARGE
            return NULL
        if self.count and HEADER_BYTES + self.end + whole > self.bytes_max:
            self.refusal = FULL
            return NULL
        if self.views:
            self.refusal = HELD
            return NULL
        if self.end + whole > self.capacity and not self.room(whole):
            self.refusal = NO_MEMORY
            return NULL
        at = write_varint(self.data + self.end, length)
        at[0] = 0
        at = write_varint(at + 1, delta)
        at = write_varint(at, number)
        at = write_varint(at, key_length)
        if key_size > 0:
            memcpy(at, key, key_size)
            at += key_size
        at = write_varint(at, value_length)
        if value_size > 0:
            memcpy(at, value, value_size)
            at += value_size
        self.note(whole, time_ms)
        return at

    cdef inline void note(self, Py_ssize_t size, int64_t time_ms) noexcept nogil:
        self.end += size
        self.count += 1
        if self.count == 1:
            self.first_time_ms = self.min_time_ms = self.max_time_ms = time_ms
        elif time_ms > self.max_time_ms:
            self.max_time_ms = time_ms
        elif time_ms < self.min_time_ms:
            self.min_time_ms = time_ms

    cdef bint room(self, Py_ssize_t more) noexcept nogil:
        """Make room for `more` bytes; doubling, but not past the limit of the batch unless this message needs it."""
        cdef Py_ssize_t wanted = self.end + more
        cdef Py_ssize_t capacity = self.capacity
        cdef uint8_t* data
        if wanted <= capacity:
            return True
        capacity = max(2 * capacity, <Py_ssize_t>FIRST_CAPACITY)
        capacity = max(min(capacity, self.bytes_max), wanted)
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            return False
        self.data = data
        self.capacity = capacity
        return True


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline uint8_t* write_varint(uint8_t* at, uint64_t rest) noexcept nogil:
    while rest > 0x7F:
        at[0] = <uint8_t>(rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1


cdef Py_ssize_t measure_pairs(properties, Pair* pairs, int* count) noexcept:
    """Point at the names and values of a dict and return their framed size; -1: leave it to the plain twin."""
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t position = 0, size = 0
    cdef Pair* pair = pairs
    if not PyDict_CheckExact(properties) or len(<dict>properties) > STACK_PAIRS:
        return -1
    while PyDict_Next(properties, &position, &name, &value):
        if not PyUnicode_Check(<object>name):
            return -1
        pair.name = PyUnicode_AsUTF8AndSize(name, &pair.name_size)
        if pair.name == NULL:
            PyErr_Clear()
            return -1
        if PyUnicode_Check(<object>value):
            pair.value = PyUnicode_AsUTF8AndSize(value, &pair.value_size)
            if pair.value == NULL:
                PyErr_Clear()
                return -1
        elif PyBytes_Check(<object>value):
            pair.value = PyBytes_AS_STRING(<object>value)
            pair.value_size = PyBytes_GET_SIZE(<object>value)
        elif <object>value is None:
            pair.value = NULL
            pair.value_size = -1
        else:
            return -1
        size += varint_size(zigzag(pair.name_size)) + pair.name_size
        size += varint_size(zigzag(pair.value_size)) + max(pair.value_size, <Py_ssize_t>0)
        pair += 1
    count[0] = <int>(pair - pairs)
    return size + varint_size(zigzag(count[0]))


cdef inline uint8_t* write_string(uint8_t* at, const void* data, Py_ssize_t size) noexcept nogil:
    at = write_varint(at, zigzag(size))
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef inline void write_pairs(uint8_t* at, Pair* pairs, int count) noexcept nogil:
    cdef int i
    at = write_varint(at, zigzag(count))
    for i in range(count):
        at = write_string(at, pairs[i].name, pairs[i].name_size)
        at = write_string(at, pairs[i].value, pairs[i].value_size)


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


cdef Py_ssize_t framed_pairs_size(
    const Strings* pairs, const Strings* names, const Strings* contents, Py_ssize_t i
) noexcept nogil:
    cdef Py_ssize_t pair, size, whole, count = max(string_size(pairs, i), <Py_ssize_t>0)
    whole = varint_size(zigzag(count))
    for pair in range(pairs.offsets[i], pairs.offsets[i] + count):
        size = string_size(names, pair)
        whole += varint_size(zigzag(size)) + size
        size = string_size(contents, pair)
        whole += varint_size(zigzag(size)) + max(size, <Py_ssize_t>0)
    return whole


cdef void frame_pairs(
    uint8_t* at, const Strings* pairs, const Strings* names, const Strings* contents, Py_ssize_t i
) noexcept nogil:
    cdef Py_ssize_t pair, count = max(string_size(pairs, i), <Py_ssize_t>0)
    at = write_varint(at, zigzag(count))
    for pair in range(pairs.offsets[i], pairs.offsets[i] + count):
        at = write_string(at, names.data + names.offsets[pair], string_size(names, pair))
        at = write_string(at, contents.data + contents.offsets[pair], string_size(contents, pair))


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
    cdef const uint8_t[::1] view = memoryview(payload).cast("B")
    cdef const uint8_t* data = &view[0] if view.shape[0] else NULL
    cdef Walk walk
    cdef Sizes sizes
    begin_walk(&walk, data, view.shape[0])
    with nogil:
        measure(&walk, count, &sizes)
    if walk.fault.kind:
        raise_fault(&walk.fault, walk.record)
    positions = np.empty(count, np.int64)
    times = np.empty(count, np.int64)
    keys = new_column(count, sizes.key_bytes, sizes.keys < count) if sizes.keys else None
    values = new_column(count, sizes.value_bytes, sizes.values < count)
    pairs = None
    if sizes.pairs:
        pairs = MapColumn(
            np.empty(count + 1, np.int32),
            new_column(sizes.pairs, sizes.name_bytes, False),
            new_column(sizes.pairs, sizes.content_bytes, sizes.contents < sizes.pairs),
        )
    columns = BufferColumns(times, values, keys, pairs, positions)
    if count:
        fill(data, count, base_offset, base_time_ms, columns)
    return columns


cdef fill(const uint8_t* data, int count, int64_t base_offset, int64_t base_time_ms, columns):
    cdef int64_t[::1] positions = columns.positions
    cdef int64_t[::1] times = columns.times_ms
    cdef int32_t[::1] ends
    cdef int32_t* pair_ends = NULL
    cdef Target keys, values, names, contents
    cdef bint has_keys = columns.keys is not None
    values = target_of(columns.values)
    if has_keys:
        keys = target_of(columns.keys)
    if columns.properties is not None:
        ends = columns.properties.offsets
        pair_ends = &ends[0]
        pair_ends[0] = 0
        names = target_of(columns.properties.names)
        contents = target_of(columns.properties.values)
    with nogil:
        copy_fields(
            data, count, base_offset, base_time_ms, &positions[0], &times[0],
            &keys if has_keys else NULL, &values, pair_ends, &names, &contents,
        )


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
    while True:
        raw |= <uint64_t>(at[0][0] & 0x7F) << shift
        shift += 7
        at[0] += 1
        if at[0][-1] < 0x80:
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
    if size > 0:
        memcpy(target.data + target.offsets[i], at, size)
    target.offsets[i + 1] = target.offsets[i] + <int32_t>size
    return at + size


cdef new_column(Py_ssize_t count, Py_ssize_t size, bint with_nulls):
    offsets = np.empty(count + 1, np.int32)
    offsets[0] = 0
    validity = np.zeros((count + 7) >> 3, np.uint8) if with_nulls else None
    return BinaryColumn(offsets, np.empty(size, np.uint8) if size else NO_BYTES, validity)


cdef Target target_of(column) except *:
    cdef int32_t[::1] offsets = column.offsets
    cdef uint8_t[::1] data
    cdef uint8_t[::1] validity
    cdef Target target
    target.offsets = &offsets[0]
    target.data = NULL
    target.validity = NULL
    if len(column.data):
        data = column.data
        target.data = &data[0]
    if column.validity is not None:
        validity = column.validity
        target.validity = &validity[0]
    return target


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
