"""Loading the library's tokenizer object, from its files or from a cache of what was built before.

A GGUF keeps its vocabulary as arrays of about a hundred thousand strings, slow to read one by one,
and newer `tokenizer.json` files spell merges in the form that parses slowest. The cache holds the
same tokenizer as one `tokenizer.json` text in the fastest form, behind a line with its checksum.
A damaged or outdated entry is rebuilt; a cache that cannot be written costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tinyserve.errors import ModelLoadError
from tinyserve.files import make_room, pointer_hint, replacing
from tinyserve.text.tokenizer_spec import TokenizerSpec

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

KEPT = 256 << 20  # bytes of all entries; beyond that the least recently used are removed
CACHE_VERSION = 2  # change it whenever the same files would give another tokenizer


def load_backend(
    spec: TokenizerSpec, cache_dir: Path | None = None, fingerprint: str | None = None
) -> tokenizers.Tokenizer:
    """The tokenizer of `spec`, by way of the cache when both other arguments are given.

    `fingerprint` identifies the files that `spec` was made from. Raises ModelLoadError.
    """
    if cache_dir is None or not fingerprint:
        return _build(spec)
    path = Path(cache_dir) / "tokenizers" / f"{_key(spec, fingerprint)}.json"
    backend = _read(path)
    if backend is None:
        backend = _build(spec)
        _write(path, backend)
    return backend


def _build(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    if spec.tokenizer_json is not None:
        import tokenizers

        try:
            return tokenizers.Tokenizer.from_buffer(spec.tokenizer_json.read_bytes())
        except Exception as error:  # the library raises bare Exception
            hint = "" if isinstance(error, OSError) else pointer_hint(spec.tokenizer_json)
            raise ModelLoadError(
                f"cannot read {spec.tokenizer_json}{hint or f': {error}'}"
            ) from error
    from tinyserve.text.gguf_tokenizer import build_gguf_tokenizer

    return build_gguf_tokenizer(spec.load_vocab(), spec.special_token_ids.get("bos_token"))


def _key(spec: TokenizerSpec, fingerprint: str) -> str:
    import tokenizers

    parts = [str(CACHE_VERSION), tokenizers.__version__, fingerprint]
    if spec.tokenizer_json is not None and spec.tokenizer_json.is_file():
        stat = spec.tokenizer_json.stat()
        parts += [str(spec.tokenizer_json.resolve()), str(stat.st_size), str(stat.st_mtime_ns)]
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()[:32]


def _read(path: Path) -> tokenizers.Tokenizer | None:
    import tokenizers

    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
        if checksum != _checksum(body):
            raise ValueError("checksum mismatch")
        with contextlib.suppress(OSError):  # a read-only cache is fine
            os.utime(path)  # it has been used
        return tokenizers.Tokenizer.from_buffer(body)
    except FileNotFoundError:
        return None
    except Exception as error:  # the library raises bare Exception
        logger.info("the cached tokenizer %s is unusable (%s); building it again", path, error)
        return None


def _write(path: Path, backend: tokenizers.Tokenizer) -> None:
    body = _fast_json(backend)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as undone:
            undone.write_bytes(_checksum(body) + b"\n" + body)
    except OSError as error:
        logger.warning("cannot write the tokenizer cache %s: %s", path, error)
        return
    with contextlib.suppress(OSError):
        make_room(path.parent.iterdir(), KEPT, path)  # also removes what killed writers left there


def _fast_json(backend: tokenizers.Tokenizer) -> bytes:
    """The tokenizer as JSON with merges as "left right", read twice as fast as pairs."""
    value = json.loads(backend.to_str())
    merges = value["model"].get("merges")
    if merges and not any(" " in part for pair in merges for part in pair):
        value["model"]["merges"] = [" ".join(pair) for pair in merges]
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)
