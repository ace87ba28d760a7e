"""Any result as a sheet: the verdict, sections, tables and charts before they have a format."""
