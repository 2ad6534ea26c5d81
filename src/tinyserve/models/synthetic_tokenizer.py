"""A real byte-level BPE tokenizer of any size, made without training or downloads.

Three ChatML special tokens, the 256 bytes, then merges that spell common English words from the
left, then (where a large vocabulary is asked for) all groups of two, three and four letters. Same
size, same tokenizer; a larger one begins with the smaller one's tokens.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator

from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2
# GPT-2's printable stand-ins for the 256 bytes; "Ġ" is the space.
BYTE_CHARACTERS = tuple(map(chr, (*range(33, 127), *range(161, 173), *range(174, 324))))
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + len(BYTE_CHARACTERS)
PRE_TOKENIZER = "gpt-2"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_WORDS = (  # noqa: SIM905 - a list of literals would be mostly quotes
    "the of and to in is that it for was on are with as his they be at one have this from or had "
    "by hot word but what some we can out other were all there when up use your how said an each "
    "she which do their time if will way about many then them write would like so these her long "
    "make thing see him two has look more day could go come did number sound no most people my "
    "over know water than call first who may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form sentence great think say help low line differ turn cause "
    "much mean before move right boy old too same tell does set three want air well also play "
    "small end put home read hand port large spell add even land here must big high such follow "
    "act why ask men change went light kind off need house picture try us again animal point "
    "mother world near build self earth father head stand own page should country found answer "
    "school grow study still learn plant cover food sun four between state keep eye never last "
    "let thought city tree cross farm hard start might story saw far sea draw left late run"
).split()


def tokenizer_spec(vocab_size: int) -> TokenizerSpec:
    """The tokenizer in memory, as if it came from a GGUF file; built when it is needed."""
    return TokenizerSpec(
        gguf_vocab=lambda: vocabulary(vocab_size),
        special_token_ids={"bos_token": BOS_ID, "eos_token": EOS_ID, "pad_token": EOS_ID},
        add_bos=False,
        chat_template=CHAT_TEMPLATE,
    )


def vocabulary(vocab_size: int) -> GGUFVocab:
    """Tokens and merges; raises ValueError where the bytes alone need more room."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size {vocab_size} is below {MIN_VOCAB_SIZE}")
    tokens = dict.fromkeys((*SPECIAL_TOKENS, *BYTE_CHARACTERS))
    merges = []
    for left, right in _merges():
        if len(tokens) >= vocab_size:
            break
        if left + right not in tokens:
            tokens[left + right] = None
            merges.append(f"{left} {right}")
    control, normal = 3, 1
    types = [control] * len(SPECIAL_TOKENS) + [normal] * (len(tokens) - len(SPECIAL_TOKENS))
    return GGUFVocab(
        model="gpt2",
        tokens=tuple(tokens),
        pre=PRE_TOKENIZER,
        token_types=tuple(types),
        merges=tuple(merges),
    )


def _merges() -> Iterator[tuple[str, str]]:
    for word in _WORDS:
        piece = "Ġ"
        for letter in word:
            yield piece, letter
            piece += letter
    for length in (2, 3, 4):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters[:-1]), letters[-1]
