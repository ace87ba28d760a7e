"""Convert each kind of result to a sheet: verdict, sentences, tables and charts, independent of the format."""
