"""`python -m overlapscope`: the command line, for when its script is not on the path."""

import sys

from overlapscope.cli.main import main

sys.exit(main())
