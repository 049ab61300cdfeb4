# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `lane`: the same four things, with a fast way through `send`.

Memory safety and order rest on one rule: between looking at a lane and the framed message nothing runs that could let
another thread in. So the fast way takes plain bytes and plain dicts only; whatever may call foreign code goes the slow
way. A receipt is made after the message has its place, and is not tracked by the garbage collector, which could run
foreign code while it is made.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItem
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from penstock._message cimport new_id
from penstock.wire._buffer cimport MessageBuffer

from asyncio import CancelledError, get_running_loop
from collections import deque

from penstock.produce.receipts import announce, future_of, is_done, outcome_of, pending, result_of, when_done
from penstock.produce.router import by_murmur2
from penstock.wire.protocol import Stored as _Stored

cdef object Stored = _Stored
cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)

cdef enum:
    RESTRICTED_MOST = 8

RESTRICTED_MAX = RESTRICTED_MOST
cdef int64_t TIME_MS_MAX = 1 << 62
NEVER_NS = (1 << 63) - 1


cdef class Parcel:
    """A batch as receipts see it; see the plain twin."""

    cdef public str topic
    cdef public object home
    cdef public object verdict
    cdef public object listeners
    cdef public object loops
    cdef public object watcher
    cdef public object partition

    def __init__(self, str topic, partition, home=None):
        self.topic = topic
        self.partition = partition
        self.home = home
        self.verdict = None
        self.listeners = deque()
        self.loops = None
        self.watcher = None


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Receipt:
    """What `send` returns at once; resolves to a message id or to one error."""

    cdef readonly Parcel parcel
    cdef readonly Py_ssize_t index

    def __init__(self, Parcel parcel not None, Py_ssize_t index):
        self.parcel = parcel
        self.index = index

    @cython.binding(False)
    def done(self):
        """Whether the message has its outcome."""
        return type(self.parcel.verdict) is Stored or is_done(self.parcel, self.index)

    @cython.binding(False)
    def result(self, timeout=None):
        """The message's id, waited for; raises the message's error, or TimeoutError while there is neither."""
        cdef Parcel parcel = self.parcel
        cdef int64_t first
        cdef int overflow = 0
        verdict = parcel.verdict
        if type(verdict) is Stored and PyLong_CheckExact((<tuple>verdict)[0]):
            first = PyLong_AsLongLongAndOverflow((<tuple>verdict)[0], &overflow)
            if first >= 0 and not overflow:
                return new_id(parcel.topic, parcel.partition, first + self.index)
        return result_of(parcel, self.index, timeout)

    def exception(self, timeout=None):
        """The message's error, waited for; None when it was stored."""
        if type(self.parcel.verdict) is Stored:
            return None
        outcome = outcome_of(self.parcel, self.index, timeout)
        return outcome if isinstance(outcome, Exception) else None

    def add_done_callback(self, callback):
        """Have this called with the receipt once the outcome is there, on the I/O thread; at once if it is."""
        when_done(callback, self)

    @cython.binding(False)
    def __await__(self):
        return over(self.result(0)) if type(self.parcel.verdict) is Stored else self.awaiting()

    def awaiting(self):
        """Suspend until the outcome is there."""
        cdef Parcel parcel = self.parcel
        while type(parcel.verdict) is not Stored:
            found = parcel if parcel.verdict is None else pending(parcel, self.index)
            if found is None:
                break
            yield future_here(found)
        return self.result(0)

    def __repr__(self):
        state = "done" if self.done() else "pending"
        return f"<Receipt {state}, message {self.index} of a batch for {self.parcel.topic}>"


cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN

    ctypedef struct AsyncMethods "PyAsyncMethods":
        PySendResult (*am_send)(PyObject*, PyObject*, PyObject**) noexcept

    ctypedef struct AwaitableType "PyTypeObject":
        AsyncMethods* tp_as_async


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Over:
    """A coroutine that has nothing left to do but tell this: what is there already is awaited at little cost."""

    cdef object value

    @cython.binding(False)
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self.value)

    def send(self, sent):
        """Be over."""
        raise StopIteration(self.value)

    def throw(self, kind, value=None, trace=None):
        """End with this instead."""
        raise kind if value is None else value

    def close(self):
        """Nothing is left to be done."""


cdef PySendResult over_send(PyObject* self, PyObject* sent, PyObject** value) noexcept:
    """What `await` calls: the value without a StopIteration around it."""
    value[0] = <PyObject*>(<Over>self).value
    Py_INCREF(<object>value[0])
    return PYGEN_RETURN


(<AwaitableType*>Over).tp_as_async.am_send = over_send


cdef Over over(value):
    cdef Over made = Over.__new__(Over)
    made.value = value
    return made


cdef object future_here(Parcel parcel):
    """What a task is to be suspended on; all in a loop but the first who wait for a parcel have a `Waiter`."""
    cdef PyObject* futures
    cdef Waiter waiter
    if parcel.loops is not None:
        loop = get_running_loop()
        futures = PyDict_GetItem(parcel.loops, loop)
        if futures != NULL:
            waiter = Waiter.__new__(Waiter)
            waiter._asyncio_future_blocking = True
            waiter.loop = loop
            (<list>futures).append(waiter)
            return waiter
    future = future_of(parcel)
    future._asyncio_future_blocking = True  # what a future says itself when it is awaited
    return future


cdef enum:
    PENDING
    DONE
    CANCELLED


@cython.final
cdef class Waiter:
    """A future in the eyes of the one task that is suspended on it.

    One of asyncio's own has the loop call the task in a handle of its own. Here it is called at once, within the one
    handle in which all who wait for a batch are woken, which takes half the time.
    """

    cdef public bint _asyncio_future_blocking
    cdef object loop
    cdef object callback
    cdef object context
    cdef object message
    cdef int state

    def add_done_callback(self, callback, *, context=None):
        """Have this called when it is done; a task does it once."""
        self.callback = callback
        self.context = context
        if self.state != PENDING:
            self.loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback):
        """Do not call this."""
        removed = int(self.callback == callback)
        if removed:
            self.callback = None
        return removed

    def set_result(self, result):
        """Wake the task."""
        self.state = DONE
        callback, self.callback = self.callback, None
        if callback is None:
            return
        if self.context is None:
            callback(self)
        else:
            self.context.run(callback, self)

    def cancel(self, msg=None):
        """The task is cancelled: wake it with that."""
        if self.state != PENDING:
            return False
        self.state = CANCELLED
        self.message = msg
        callback, self.callback = self.callback, None
        if callback is not None:
            self.loop.call_soon(callback, self, context=self.context)
        return True

    def get_loop(self):
        """The loop whose task waits."""
        return self.loop

    def done(self):
        """Whether nobody is to be woken any more."""
        return self.state != PENDING

    def cancelled(self):
        """Whether the task was cancelled."""
        return self.state == CANCELLED

    def result(self):
        """Nothing, or the end of the task."""
        if self.state == CANCELLED:
            raise CancelledError() if self.message is None else CancelledError(self.message)

    exception = result


cdef class Lane:
    """The near end of a lane, as `send` sees it; see the plain twin."""

    cdef public Parcel batch
    cdef public tuple shared
    cdef public int64_t deadline_ns
    cdef public int count_max
    cdef object any_buffer
    cdef MessageBuffer fast_buffer  # the same where it is of the compiled kind

    def __init__(self):
        self.count_max = 1
        self.deadline_ns = NEVER_NS

    @property
    def buffer(self):
        """The open batch's buffer; None while no batch is open, or somebody works on it in private."""
        return self.any_buffer

    @buffer.setter
    def buffer(self, buffer):
        self.any_buffer = buffer
        self.fast_buffer = buffer if isinstance(buffer, MessageBuffer) else None


cdef class Intake:
    """Where a producer's messages come in; see the plain twin."""

    cdef public object slow
    cdef public object slow_soon
    cdef public object due
    cdef public object hash_key
    cdef public dict lanes
    cdef public Lane current
    cdef public long partitions
    cdef public bint is_fast
    cdef bint is_murmur2
    cdef tuple names
    cdef tuple allowed

    def __init__(self, due, hash_key, lock):
        self.due = due
        self.hash_key = hash_key
        self.is_murmur2 = is_murmur2(hash_key)
        self.lanes = {}
        self.names = self.allowed = ()

    def restrict(self, names, allowed):
        """Messages share a batch only if they agree on these properties; `allowed` tells what their values count as."""
        if len(names) > RESTRICTED_MOST:
            raise ValueError(f"the fast way compares at most {RESTRICTED_MOST} properties")
        self.names, self.allowed = tuple(names), tuple(allowed)

    @cython.binding(False)
    def send(
        self, value, key=None, properties=None, event_time=None, partition=None, tag=None, keys=None, deliver_at=None,
        wait_for_store=None, callback=None,
    ):
        """Take one message and return its receipt at once."""
        cdef Receipt receipt
        if self.is_fast and tag is None and keys is None and deliver_at is None and wait_for_store is None:
            receipt = self.take(value, key, properties, event_time, partition, callback)
            if receipt is not None:
                return receipt
        return self.slow(value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store, callback)

    @cython.binding(False)
    def send_soon(
        self, value, key=None, properties=None, event_time=None, partition=None, tag=None, keys=None, deliver_at=None,
        wait_for_store=None, callback=None,
    ):
        """Take one message; to be awaited for its receipt, which suspends only where the slow way does."""
        cdef Receipt receipt
        if self.is_fast and tag is None and keys is None and deliver_at is None and wait_for_store is None:
            receipt = self.take(value, key, properties, event_time, partition, callback)
            if receipt is not None:
                return over(receipt)
        return self.slow_soon(
            value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store, callback
        )

    @cython.final
    cdef Receipt take(self, value, key, properties, event_time, partition, callback):
        """Frame a plain message into its lane's open batch; None where that cannot be done so."""
        cdef Lane lane
        cdef MessageBuffer buffer
        cdef Parcel batch
        cdef Receipt receipt
        cdef int64_t now_ns, time_ms
        cdef timespec now
        cdef int index
        cdef PyObject* counting[RESTRICTED_MOST]
        if not (PyBytes_CheckExact(value) or value is None) or not (PyBytes_CheckExact(key) or key is None):
            return None
        if properties is not None and not PyDict_CheckExact(properties):
            return None
        if self.names and not self.read_counting(properties, counting):
            return None
        lane = self.choose(key, partition)
        if lane is None:
            return None
        buffer = lane.fast_buffer
        if buffer is None or (self.names and not self.agrees(lane.shared, counting)):
            return None
        clock_gettime(CLOCK_REALTIME, &now)
        now_ns = <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec
        time_ms = now_ns // 1_000_000 if event_time is None else plain_time(event_time)
        if time_ms < 0:
            return None
        batch = lane.batch
        index = buffer.append_bytes(value, key, properties, time_ms)
        if index < 0:
            return None
        receipt = Receipt.__new__(Receipt)
        receipt.parcel = batch
        receipt.index = index
        if callback is not None:
            batch.listeners.append((callback, receipt))
            if batch.verdict is not None:  # making the pair may have let another thread in, and the outcome be told
                announce(batch)
        if index + 1 >= lane.count_max or now_ns >= lane.deadline_ns:
            self.due(lane, batch)
        return receipt

    @cython.final
    cdef bint read_counting(self, properties, PyObject** counting) except -1:
        """What a message brings of the restricted properties; False where the slow way must judge it.

        Looking into a dict may run foreign code, of its other keys: so it is done before the lane is looked at.
        """
        cdef Py_ssize_t at
        cdef PyObject* value
        for at in range(len(self.names)):
            counting[at] = <PyObject*>None
            value = PyDict_GetItem(properties, self.names[at]) if properties is not None else NULL
            if value == NULL or value == <PyObject*>None:
                continue
            if not (PyUnicode_CheckExact(<object>value) or PyBytes_CheckExact(<object>value)):
                return False
            value = PyDict_GetItem(self.allowed[at], <object>value)
            if value != NULL:
                counting[at] = value
        return True

    @cython.final
    cdef bint agrees(self, tuple shared, PyObject** counting) noexcept:
        """Whether that is what the messages of a batch share; values that count are each one object."""
        cdef Py_ssize_t at
        if shared is None:
            return False
        for at in range(len(self.names)):
            if PyTuple_GET_ITEM(shared, at) != counting[at]:
                return False
        return True

    @cython.final
    cdef Lane choose(self, key, partition):
        """The lane that a plain message goes to; None while it has none, or the slow way must say what is wrong."""
        cdef PyObject* found
        if partition is not None:
            if not PyLong_CheckExact(partition):
                return None
        elif key is None:
            return self.current
        elif self.partitions == 0:
            return None
        elif self.is_murmur2:
            partition = partition_of(key, self.partitions)
        else:
            partition = self.hash_key(key, self.partitions)
        found = PyDict_GetItem(self.lanes, partition)
        return <Lane>found if found != NULL else None


cdef inline int64_t plain_time(event_time) noexcept:
    """An event time in ms, or -1 for what the slow way must judge."""
    cdef int overflow = 0
    cdef int64_t time_ms
    if not PyLong_CheckExact(event_time):
        return -1
    time_ms = PyLong_AsLongLongAndOverflow(event_time, &overflow)
    return time_ms if 0 <= time_ms < TIME_MS_MAX and not overflow else -1


cdef uint32_t murmur2(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """The 32-bit hash that Kafka's Java client gives a key."""
    cdef uint32_t m = 0x5BD1E995, h = <uint32_t>0x9747B28C ^ <uint32_t>size, k
    cdef Py_ssize_t left = size
    while left >= 4:
        k = data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        data += 4
        left -= 4
    if left == 3:
        h ^= <uint32_t>data[2] << 16
    if left >= 2:
        h ^= <uint32_t>data[1] << 8
    if left >= 1:
        h = (h ^ data[0]) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


def survey(list items not None):
    """The index of the first item that is neither bytes nor None (-1: there is none), the shortest and the longest."""
    cdef Py_ssize_t i, size, shortest = PY_SSIZE_T_MAX, longest = 0, count = len(items)
    for i in range(count):
        item = items[i]
        if item is None:
            size = 0
        elif PyBytes_CheckExact(item):
            size = PyBytes_GET_SIZE(item)
        else:
            return i, 0, 0
        shortest = min(shortest, size)
        longest = max(longest, size)
    return -1, shortest if count else 0, longest


def partitions_of(keys, long partitions, hash_key, out):
    """Put the partition of each of these keys into `out`."""
    cdef int[::1] places = out
    cdef Py_ssize_t i = 0
    if not is_murmur2(hash_key):
        out[:] = [hash_key(key, partitions) for key in keys]
        return
    for key in keys:
        places[i] = partition_of(<bytes?>key, partitions)
        i += 1


cdef bint is_murmur2(hash_key):
    return hash_key is by_murmur2


cdef inline int partition_of(key, long partitions) noexcept:
    return (murmur2(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % partitions
