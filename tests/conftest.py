"""What holds for every test: no settings from the shell, no hub, unhurried hypothesis."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Set by a developer for the tests themselves; any other TINYSERVE_* would change what is tested.
KEPT = (
    "TINYSERVE_REAL_MODEL",
    "TINYSERVE_REQUIRE_REFERENCE",
    "TINYSERVE_REQUIRE_BROWSER",
    "TINYSERVE_REQUIRE_CLIENTS",
    "TINYSERVE_LM_EVAL",
    "TINYSERVE_BACKEND",
    "TINYSERVE_CACHE",
)

settings.register_profile(
    "tinyserve", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("tinyserve")

if "TINYSERVE_REAL_MODEL" not in os.environ:  # which may be a hub id
    os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for name in [name for name in os.environ if name.startswith("TINYSERVE_") and name not in KEPT]:
    del os.environ[name]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Depends on the test's name alone, so that any order of tests draws the same numbers."""
    return np.random.default_rng(random.Random(request.node.nodeid).getrandbits(64))
