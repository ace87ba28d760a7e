"""Write the files of other programs as these write them, from a few words each."""
