"""What drawn tokens do to their sequence: which of them stand, and whether one ends the choice.

One code path for one token a step or several, so that drafts need no rule of their own.
"""

from __future__ import annotations

from tinyserve.engine.request import RequestOutput
from tinyserve.engine.sampling import SampledToken
from tinyserve.engine.sequence import Sequence
from tinyserve.spec.verify import num_confirmed


def confirmed(drawn: list[SampledToken], drafts: tuple[int, ...]) -> list[SampledToken]:
    """The draws that stand: those up to and including the first that is not the draft there.

    A fault after an accepted draft does not count yet: the tokens before it may end the choice, and
    if they do not, the next step meets it again.
    """
    count = num_confirmed([token.token_id for token in drawn], drafts)
    faults = (i for i in range(1, count) if drawn[i].is_nan or drawn[i].is_blocked)
    return drawn[: next(faults, count)]


def take_tokens(seq: Sequence, drawn: list[SampledToken]) -> RequestOutput:
    """Append drawn tokens until one ends the choice. What came of them: the tokens, the text that
    became visible, and whether the choice ends.

    It ends at a stop id, else at a stop string, else at the length limit. A stop id stays in the
    ids; its text is shown only under include_stop_str_in_output.
    """
    job, text, token_ids, output_ids = seq.job, seq.text, seq.token_ids, seq.output_ids
    output = seq.new_output()
    for token in drawn:
        token_id = token.token_id
        token_ids.append(token_id)
        output_ids.append(token_id)
        output.new_token_ids.append(token_id)
        if seq.grammar is not None:
            seq.grammar.take(token_id)
        if token_id in job.stop_ids:
            _stop_at(seq, token_id, output)
            break
        if text is not None:
            output.new_text += text.push(token_id, len(output_ids) > job.min_tokens)
            if text.stop_hit is not None:
                output.finish_reason, output.stop_reason = "stop", text.stop_hit
                break
        if len(token_ids) >= job.max_len:
            output.finish_reason = "length"
            if text is not None:
                output.new_text += text.flush()
            break
    if job.has_logprobs:
        output.logprobs = drawn[: len(output.new_token_ids)]
    return output


def _stop_at(seq: Sequence, token_id: int, output: RequestOutput) -> None:
    """A stop id ends the choice: EOS, without a stop reason, or one of `stop_token_ids`."""
    job, text = seq.job, seq.text
    output.finish_reason = "stop"
    output.stop_reason = None if token_id in job.eos_ids else token_id
    if text is not None:
        if job.params.include_stop_str_in_output:
            output.new_text += text.push(token_id, False)
        output.new_text += text.flush()
