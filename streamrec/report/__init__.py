"""Numbers as people see them: words, bars, tables, charts, HTML, and the verdict on a job."""
