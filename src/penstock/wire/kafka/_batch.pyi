"""Types of the compiled twin."""

from penstock.wire.kafka.batch import RecordBuffer as RecordBuffer
from penstock.wire.kafka.batch import gather as gather
