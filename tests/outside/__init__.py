"""Suites that others made, run against streamrec; by hand, and every night.

    python -m tests.outside [pictures] [json] [csv] [samplings] [stores] [tensorflow] [states]

What a suite needs is fetched from Debian's sources (``apt-get source``) and not kept, or stands in
a checkout that a variable of the environment names: the licences are those of its authors. A suite
without what it needs is told as missing, and is not a failure. Each case agrees, differs for a
known reason, or is a fault: then the exit code is 1.
"""
