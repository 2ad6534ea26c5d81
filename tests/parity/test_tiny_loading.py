"""What our loader read is what transformers reads: the same weights, configuration and rotary rule.

Both sides run in transformers, so they must agree bit for bit, and a fault here is the loader's.
"""

from __future__ import annotations

import numpy as np
import pytest
from hf_from_checkpoint import reference_of
from hf_tiny_models import MODELS, TinyModel
from parity_cases import Cases

from tinyserve.models.checkpoint import load_checkpoint


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_loaded_values_match(cases: Cases, model: TinyModel) -> None:
    case = cases[model]
    checkpoint = load_checkpoint(str(case.folder))
    token_ids = list(range(3, 203))
    ours = reference_of(checkpoint).logits(token_ids)
    np.testing.assert_array_equal(ours, case.reference.logits(token_ids))
    assert checkpoint.eos_token_ids == (2,)
