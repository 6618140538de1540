"""MLPerf Storage's benchmark, DLIO, with its own readers and with streamrec's."""
