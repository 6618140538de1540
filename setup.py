"""Builds the kernel in C where there is a compiler; everything else is in pyproject.toml.

``STREAMREC_BUILD_KERNEL``: ``require`` makes the installation fail where the kernel cannot be
built; otherwise it succeeds without, and the kernel in Python runs.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# Free-threaded interpreters have no limited API before 3.15: there a wheel serves one version.
limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
kernel = Extension(
    "streamrec.kernel._native",
    sources=sorted(map(str, Path("streamrec/kernel/c").glob("*.c"))),
    depends=sorted(map(str, Path("streamrec/kernel/c").glob("*.h"))),
    extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")] if limited else [],
    py_limited_api=limited,
    optional=os.environ.get("STREAMREC_BUILD_KERNEL") != "require",
)
setup(
    ext_modules=[kernel],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if limited else {},
)
