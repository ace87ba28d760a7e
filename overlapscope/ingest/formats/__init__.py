"""One package per file format: `__init__` recognises a file and names its readers, `reader.py` reads it.

Every opened file is offered to all formats, so recognising is cheap and loads nothing that only reading needs. A check
that needs more than the beginning of the text imports its module inside the function; the reading module is imported
when a file of its format is read.
"""
