"""The formats that are read, one a module: how a file is known, and which module reads it.

Every file that is opened is shown to all of them, so they are light: they load nothing that reading needs. What takes
more than the beginning of a text to tell is imported where it is asked, and what reads is imported when a file of the
format is read.
"""
