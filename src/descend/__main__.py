"""python -m descend."""

import sys

from descend.cli import main

sys.exit(main())
