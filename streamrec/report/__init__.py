"""Numbers, tables and charts as people see them, and the verdict; README.md names the files."""
