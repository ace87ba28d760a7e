"""What one GPU must show before recording on it is believed: `overlapscope doctor --gpu`.

`checks.py` lists the checks with their acceptance figures, `run_checks.py` runs each in a process of its own, and
`document.py` judges what it measured. The other files measure; each takes what it needs from the device, and says
"not run" where the device does not offer it.
"""
