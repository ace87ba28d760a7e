"""A few lines for each training framework: where its steps begin and end, and which model to look at.

These modules put `overlapscope.profile` into a host's own hooks, so they belong to the package's face, above capture,
which knows no host. Each is imported by its own name (`overlapscope.frameworks.lightning`), and `import overlapscope`
loads none of them; the host itself is imported only when one of its hooks is asked for.
"""
