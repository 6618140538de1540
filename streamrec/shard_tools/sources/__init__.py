"""What datasets are written from: folders, tables, text, archives and generators."""
