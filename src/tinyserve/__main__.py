"""`python -m tinyserve`."""

from __future__ import annotations

import sys

from tinyserve.cli import main

sys.exit(main())
