"""Linear: every weight format, alone and mixed, with every epilogue, at every number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_tools import (
    F64,
    FORMATS,
    apply,
    bind,
    make_weight,
    quantized_product,
    rounding_bound,
    rows_batch,
    same_bits,
    suited,
)

from tinyserve.kernels import packing
from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Backend
from tinyserve.kernels.reference import ReferenceBackend

F32_ROUNDING = 2e-6  # of the sum of magnitudes: float32 accumulation of up to 1,024 terms


def activations(rows: int, k: int, rng: np.random.Generator) -> F32:
    """Rows of different sizes, with a group of zeros and an outlier among them."""
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x *= np.exp(rng.standard_normal((rows, 1))).astype(np.float32)
    x[0, : k // 2] = 0
    x[-1, -1] = 40
    return x


def linear(backend: Backend, x: F32, parts: list[Weight], **options: Any) -> F32:
    """One linear operation; `residual` is an operand, the rest prepares the weight."""
    residual = options.pop("residual", None)
    weight = backend.linear(parts, **options)
    if residual is None:
        return apply(backend, lambda ops, a: ops.linear(a, weight), x)
    return apply(backend, lambda ops, a, r: ops.linear(a, weight, residual=r), x, residual)


def in_two_parts(x: F32) -> F32:
    """Each number as the sum of two bf16 numbers: cut off after 8 bits, the rest rounded to 8."""
    first = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    rest = (x - first).view(np.uint32) + np.uint32(0x8000)
    return np.asarray(first + (rest & np.uint32(0xFFFF0000)).view(np.float32))


def product(x: F32, parts: list[Weight], kind: str = "") -> F64:
    """What the kernels compute, from float64 arithmetic."""
    if kind == "bf16:x2" and x.shape[1] % 32 == 0:
        x = in_two_parts(x)
    columns = []
    for part in parts:
        if isinstance(part, FloatWeight):
            columns.append(x.astype(np.float64) @ part.dequantize().astype(np.float64).T)
        else:
            columns.append(quantized_product(x, part))
    return np.concatenate(columns, axis=1)


def magnitudes(x: F32, parts: list[Weight]) -> F64:
    dense = np.concatenate([part.dequantize() for part in parts]).astype(np.float64)
    return np.asarray(np.abs(x.astype(np.float64)) @ np.abs(dense).T)


def close(got: F32, want: F64, scale: F64, tolerance: float = F32_ROUNDING) -> bool:
    return bool((np.abs(got - want) <= tolerance * scale + 1e-30).all())


@pytest.mark.parametrize("n", [1, 48, 100])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(variant: NativeBackend, kind: str, n: int, rng: np.random.Generator) -> None:
    x, weight = activations(7, 1024, rng), make_weight(kind, n, 1024, rng)
    got = linear(suited(variant, kind), x, [weight])
    assert got.shape == (7, n)
    assert close(got, product(x, [weight], kind), magnitudes(x, [weight]))


@pytest.mark.parametrize("kind", FORMATS)
def test_numpy_is_the_dequantized_product(kind: str, rng: np.random.Generator) -> None:
    x, weight = activations(7, 512, rng), make_weight(kind, 40, 512, rng)
    want = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    assert close(linear(ReferenceBackend(), x, [weight]), want, magnitudes(x, [weight]))


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind[0] in "iu"])
def test_near_the_dequantized_product(
    native: NativeBackend, kind: str, rng: np.random.Generator
) -> None:
    """No further than rounding each activation to half a step can take it."""
    x, weight = activations(9, 1024, rng), make_weight(kind, 48, 1024, rng)
    assert isinstance(weight, Int8Weight | U4Weight)
    want = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    bound = rounding_bound(x, weight) + F32_ROUNDING * magnitudes(x, [weight])
    assert (np.abs(linear(native, x, [weight]) - want) <= bound).all()


@pytest.mark.parametrize("k", [1, 3, 15, 33])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "bf16:x2"])
def test_float_weights_of_any_width(
    variant: NativeBackend, kind: str, k: int, rng: np.random.Generator
) -> None:
    x, weight = activations(5, k, rng), make_weight(kind, 19, k, rng)
    assert close(
        linear(suited(variant, kind), x, [weight]),
        product(x, [weight], kind),
        magnitudes(x, [weight]),
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_do_not_see_each_other(
    variant: NativeBackend, kind: str, rng: np.random.Generator
) -> None:
    """1 to 40, 130 and 300 rows: the bits of a row are those that it has among 300."""
    x, k = activations(300, 512, rng), 512
    variant = suited(variant, kind)
    weight = variant.linear([make_weight(kind, 40, k, rng)])
    run = bind(variant, lambda ops, a: ops.linear(a, weight), x)
    whole = run(rows_batch(300))
    for rows in (*range(1, 41), 130):
        assert same_bits(run(rows_batch(rows)), whole[:rows]), f"{rows} rows"


@pytest.mark.parametrize("kind", FORMATS)
def test_variants_and_threads_agree(
    kind: str, native: NativeBackend, rng: np.random.Generator
) -> None:
    from helpers.native import exact_variants

    x, part = activations(150, 1024, rng), make_weight(kind, 72, 1024, rng)
    want = linear(suited(native, kind), x, [part])
    for name in exact_variants():
        for threads in (1, 3):
            got = linear(suited(NativeBackend(threads, name), kind), x, [part])
            assert same_bits(got, want), f"{name} on {threads} threads"


def test_two_parts_keep_16_bits(variant: NativeBackend) -> None:
    """16 bits of an activation meet the weight whole, where one bf16 part would keep 8; of more,
    the nearest.
    """
    x = np.zeros((5, 32), np.float32)
    x[:, 5] = [1 + 2**-15, -(2 - 2**-15), 2**-98 * (1 + 2**-15), 1 + 2**-8 + 2**-17, 3.3e38]
    eye = make_weight("bf16:x2", 1, 32, np.random.default_rng(0))
    eye = FloatWeight(np.full_like(eye.data, 0x3F80))  # 1.0
    got = linear(suited(variant, "bf16:x2"), x, [eye])[:, 0]
    assert same_bits(got, in_two_parts(x)[:, 5])
    assert same_bits(got[:3], x[:3, 5])
    assert (np.abs(got - x[:, 5]) <= np.abs(x[:, 5]) * np.float32(2**-17)).all()


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_two_parts_are_for_whole_steps(
    variant: NativeBackend, rows: int, rng: np.random.Generator
) -> None:
    """Where the features are no multiple of 32, bf16 weights are multiplied as ever."""
    x, weight = activations(rows, 80, rng), make_weight("bf16", 24, 80, rng)
    assert same_bits(linear(suited(variant, "bf16:x2"), x, [weight]), linear(variant, x, [weight]))


@pytest.mark.parametrize("kind", ["u4", "u4:f32"])
def test_minima_that_are_not_stored_give_the_same_bits(
    variant: NativeBackend, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = activations(140, 256, rng), make_weight(kind, 40, 256, rng)
    short = variant.linear([weight])
    monkeypatch.setattr(packing, "_follows_from_scale", lambda weight: False)
    long = variant.linear([weight])
    for rows in (1, 7, 31, 32, 140):
        got, want = (
            bind(variant, lambda ops, a, w=w: ops.linear(a, w), x)(rows_batch(rows))
            for w in (short, long)
        )
        assert same_bits(got, want), f"{rows} rows"


MIXED = [
    ("u4", "u4", "int8:32"),
    ("int8:32", "bf16", "u4"),
    ("int8:32", "int8:16", "int8:32:min"),
    ("f32", "f16", "bf16"),
    ("u4", "u4:f32", "u4"),
    ("int8:64:f32", "int8:64:f32", "int8:64:f32"),
]


@pytest.mark.parametrize("kinds", MIXED, ids=",".join)
def test_several_parts(
    variant: NativeBackend, kinds: tuple[str, ...], rng: np.random.Generator
) -> None:
    """Queries, keys and values may come in different formats; a bias covers them all."""
    x = activations(35, 256, rng)
    parts = [make_weight(kind, n, 256, rng) for kind, n in zip(kinds, (64, 32, 40), strict=True)]
    bias = rng.standard_normal(136).astype(np.float32)
    got = linear(variant, x, parts, bias=bias)
    assert close(got, product(x, parts) + bias, magnitudes(x, parts) + np.abs(bias))


def test_parts_that_do_not_fill_panels(variant: NativeBackend, rng: np.random.Generator) -> None:
    """Parts of different formats whose rows are no multiple of 16 are widened to f32."""
    x = activations(5, 64, rng)
    parts = [make_weight("u4", 24, 64, rng), make_weight("int8:32", 8, 64, rng)]
    want = x.astype(np.float64) @ np.concatenate([p.dequantize() for p in parts]).T
    assert close(linear(variant, x, parts), want, magnitudes(x, parts))


@pytest.mark.parametrize("backend_name", ["numpy", "native"])
@pytest.mark.parametrize("kind", ["f32", "bf16", "bf16:x2", "int8:32:min", "u4"])
def test_epilogues(
    backend_name: str, kind: str, request: pytest.FixtureRequest, rng: np.random.Generator
) -> None:
    """Bias, residual, and both; the last panel is not full."""
    fixture = "numpy_backend" if backend_name == "numpy" else "native"
    backend: Backend = request.getfixturevalue(fixture)
    if isinstance(backend, NativeBackend):
        backend = suited(backend, kind)
    x, part = activations(34, 128, rng), make_weight(kind, 52, 128, rng)
    bias = rng.standard_normal(52).astype(np.float32)
    residual = rng.standard_normal((34, 52)).astype(np.float32)
    want = product(x, [part], kind)
    if backend_name == "numpy":
        want = x.astype(np.float64) @ part.dequantize().astype(np.float64).T
    scale = magnitudes(x, [part]) + 10
    assert close(linear(backend, x, [part], bias=bias), want + bias, scale)
    assert close(linear(backend, x, [part], residual=residual), want + residual, scale)
    both = linear(backend, x, [part], bias=bias, residual=residual)
    assert close(both, want + bias + residual, scale)


SILU = [
    ("f32", "f32"),
    ("bf16", "bf16"),
    ("bf16:x2", "bf16:x2"),
    ("int8:32:min", "int8:32"),
    ("u4", "u4"),
    ("u4", "u4:f32"),
    ("u4:min", "u4"),
]
MIXED_SILU = [("u4", "int8:32"), ("int8:32", "u4:f32"), ("int8:16", "int8:32"), ("f16", "u4")]


@pytest.mark.parametrize("n", [48, 24])
@pytest.mark.parametrize("kinds", SILU + MIXED_SILU, ids=",".join)
def test_silu_mul(
    variant: NativeBackend, kinds: tuple[str, str], n: int, rng: np.random.Generator
) -> None:
    """silu(gate) * up. Gate and up of two formats meet in one that holds both: int8, or f32."""
    x = activations(33, 64, rng) / 8
    gate, up = (make_weight(kind, n, 64, rng) for kind in kinds)
    bias = rng.standard_normal(2 * n).astype(np.float32)
    variant = suited(variant, kinds[0])
    got = linear(variant, x, [gate, up], silu_mul=True, bias=bias)[:, :n]
    g, u = np.split(product(x, _as_computed([gate, up])) + bias, 2, axis=1)
    want = g / (1 + np.exp(-g)) * u
    sides = np.split(magnitudes(x, [gate, up]) + np.abs(bias), 2, axis=1)
    assert close(got, want, sides[0] * sides[1] + sides[1], 4e-6)


def _as_computed(parts: list[Weight]) -> list[Weight]:
    """Same formats stay; four bits beside int8 of group 32 become int8; all else f32."""
    kinds = {(type(part), getattr(part, "group", getattr(part, "dtype", ""))) for part in parts}
    if len(kinds) == 1:
        return parts
    wide: list[Weight] = [part.to_int8() if isinstance(part, U4Weight) else part for part in parts]
    if all(isinstance(part, Int8Weight) and part.group == 32 for part in wide):
        return wide
    return [FloatWeight(part.dequantize()) for part in parts]


def test_silu_far_from_zero(variant: NativeBackend) -> None:
    """Large negative gates give zeros, not NaN; large positive ones pass."""
    gates = np.array([[-1e4], [-100.0], [-20.0], [0.0], [20.0], [100.0], [1e4]], np.float32)
    eye = FloatWeight(np.ones((1, 1), np.float32))
    got = linear(variant, gates, [eye, eye], silu_mul=True)[:, 0]
    wide = gates[:, 0].astype(np.float64)
    with np.errstate(over="ignore"):
        want = wide / (1 + np.exp(-wide)) * wide
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-30)


def test_int16_activations_are_lossless(variant: NativeBackend, rng: np.random.Generator) -> None:
    """Activations that fit 16 bits lose nothing against int8 weights: the result is exact."""
    x = rng.integers(-32767, 32768, (5, 64)).astype(np.float32)
    x[:, ::32] = 32767
    q = rng.integers(-3, 4, (20, 64)).astype(np.int8)
    weight = Int8Weight(q, np.full((20, 2), 0.5, np.float32), None, 32)
    want = x.astype(np.int64) @ q.astype(np.int64).T / 2
    assert np.abs(want).max() < 2**24
    assert (linear(variant, x, [weight]) == want).all()


def test_largest_integer_sums_fit(variant: NativeBackend) -> None:
    """-128 against 32767 in a group of 512, and 15 against 127: nothing wraps round."""
    x = np.full((3, 1024), -7.0, np.float32)
    int8 = Int8Weight(np.full((16, 1024), -128, np.int8), np.ones((16, 2), np.float32), None, 512)
    u4 = U4Weight(
        np.full((16, 1024), 15, np.uint8),
        np.ones((16, 32), np.float32),
        np.zeros((16, 32), np.float32),
    )
    np.testing.assert_allclose(linear(variant, x, [int8]), 128 * 7 * 1024, rtol=1e-6)
    np.testing.assert_allclose(linear(variant, x, [u4]), -15 * 7 * 1024, rtol=1e-6)


def test_groups_over_512_are_widened(variant: NativeBackend, rng: np.random.Generator) -> None:
    x = activations(3, 1024, rng)
    weight = make_weight("int8:1024", 16, 1024, rng)
    want = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    assert close(linear(variant, x, [weight]), want, magnitudes(x, [weight]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_damage_stays_in_its_row(
    variant: NativeBackend, kind: str, bad: float, rng: np.random.Generator
) -> None:
    x = activations(40, 512, rng)
    part = make_weight(kind, 24, 512, rng)
    variant = suited(variant, kind)
    clean = linear(variant, x, [part])
    x[17, 300] = bad
    hurt = linear(variant, x, [part])
    assert not np.isfinite(hurt[17]).any()
    assert same_bits(np.delete(hurt, 17, 0), np.delete(clean, 17, 0))


def test_tiny_activations_do_not_become_nan(variant: NativeBackend) -> None:
    """Scales of denormal activations divide to infinity; such groups count as zero or exactly."""
    for kind_q in (Int8Weight, U4Weight):
        x = np.full((1, 32), 1e-42, np.float32)
        scale = np.ones((16, 1), np.float32)
        if kind_q is Int8Weight:
            weight: Weight = Int8Weight(np.full((16, 32), 1, np.int8), scale, None, 32)
        else:
            weight = U4Weight(np.full((16, 32), 1, np.uint8), scale, 0 * scale)
        got = linear(variant, x, [weight])
        assert np.isfinite(got).all()
        assert (np.abs(got) <= 33e-42).all()
