"""What people see of numbers: words, bars, tables, charts and HTML, and the verdict on a job."""
