"""The kernel in C, at the speed of the hardware, by the same contract as the one in Python.

Importing it raises ``ImportError`` where the extension was not built. The C sources are in
``kernel/c``; the code here allocates memory and turns codes into
:class:`~streamrec.kernel.contract.KernelFault`.
"""

from __future__ import annotations

from streamrec.kernel.native.examples import Parser as Parser
from streamrec.kernel.native.frames import corrupt_row as corrupt_row
from streamrec.kernel.native.frames import crc32c as crc32c
from streamrec.kernel.native.frames import frame_records as frame_records
from streamrec.kernel.native.frames import gather as gather
from streamrec.kernel.native.frames import masked_crc32c as masked_crc32c
from streamrec.kernel.native.frames import scan_frames as scan_frames
from streamrec.kernel.native.pictures import unfilter as unfilter
from streamrec.kernel.native.records import MessageEncoder as MessageEncoder
from streamrec.kernel.native.records import encode_plain as encode_plain
