"""The kernel in Python: the executable specification, which runs where the one in C was not built.

It is written to be read. NumPy, ``crc32c`` and protobuf's own C code do the work on the bytes;
Python's part is per record, never per byte.
"""

from __future__ import annotations

from streamrec.kernel.reference.examples import Parser as Parser
from streamrec.kernel.reference.frames import corrupt_row as corrupt_row
from streamrec.kernel.reference.frames import crc32c as crc32c
from streamrec.kernel.reference.frames import frame_records as frame_records
from streamrec.kernel.reference.frames import gather as gather
from streamrec.kernel.reference.frames import masked_crc32c as masked_crc32c
from streamrec.kernel.reference.frames import scan_frames as scan_frames
from streamrec.kernel.reference.pictures import unfilter as unfilter
from streamrec.kernel.reference.records import MessageEncoder as MessageEncoder
from streamrec.kernel.reference.records import encode_plain as encode_plain
