"""`python -m tests.perf`, which `make bench` calls."""

import sys

from tests.perf.run import main

sys.exit(main())
