"""`python -m grassia` is the command `grassia`."""

from __future__ import annotations

import sys

from grassia.cli import main

sys.exit(main())
