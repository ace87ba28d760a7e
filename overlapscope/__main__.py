"""`python -m overlapscope`: the command line, where its script is not on the path."""

import sys

from overlapscope.cli.main import main

sys.exit(main())
