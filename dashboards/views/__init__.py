"""The content of pages as plain values, selected, ordered and named; testable without a browser."""
