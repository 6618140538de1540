"""Decoding packed int64 varints in several ways: a C microbenchmark, apart from the package."""
