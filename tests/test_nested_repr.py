"""How nested tensors show in text and in notebooks."""

import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf


def test_text():
    nt = jf.as_nested(jnp.ones((384, 512), jnp.bfloat16), extents=[127, 0, 198])
    assert repr(nt) == "NestedTensor(bf16[expert=3, ragged=[127,0,198], 512], rows 325/384)"


def test_text_under_jit():
    texts = []
    jax.jit(lambda nt: texts.append(repr(nt)))(jf.as_nested(jnp.ones((384, 512), jnp.bfloat16), extents=[127, 0, 198]))
    assert texts == ["NestedTensor(bf16[expert=3, ragged=?<=384, 512])"]


@pytest.mark.parametrize(
    "dtype, short",
    [("float32", "f32"), ("int8", "i8"), ("uint8", "u8"), ("bool", "bool"), ("float8_e4m3fn", "f8_e4m3fn")],
)
def test_dtypes(dtype, short):
    assert (
        repr(jf.as_nested(jnp.zeros(2, dtype), extents=[2])) == f"NestedTensor({short}[expert=1, ragged=[2]], rows 2/2)"
    )


def test_long_lists_are_cut():
    nt = jf.as_nested(jnp.ones((2016, 1)), extents=list(range(64)))
    assert repr(nt) == "NestedTensor(f32[expert=64, ragged=[0,1,2,...,61,62,63], 1], rows 2016/2016)"
    assert "[0,1,2,3,4,5,6,7]" in repr(jf.as_nested(jnp.ones(28), extents=list(range(8))))


def test_outer_dimensions():
    nt = jf.as_nested(jnp.ones((2, 100, 512)), extents=[[55, 35], [65, 25]], ragged_dim=1)
    assert repr(nt) == "NestedTensor(f32[2, expert=2, ragged=[[55,35],[65,25]], 512], rows 180/200)"


def test_odd_leaves():
    assert repr(jf.NestedTensor(0, None)) == "NestedTensor(data=0, extents=None, starts=None)"
    assert repr(jax.tree.map(lambda x: "leaf", jf.as_nested(jnp.ones(2), extents=[2]))).startswith("NestedTensor(data=")


SVG = "{http://www.w3.org/2000/svg}"


def words(page):
    return [node.text for node in ElementTree.fromstring(page).iter(f"{SVG}text")]


def test_html():
    nt = jf.as_nested(jnp.ones((384, 512)), extents=[127, 0, 198])
    page = nt._repr_html_()
    assert words(page) == ["rows", "325 of 384 rows, 15% padding", "0", "127", "1", "empty", "2", "198"]
    assert "<code>NestedTensor(f32[expert=3, ragged=[127,0,198], 512], rows 325/384)</code>" in page
    assert words(jf.as_nested(jnp.ones((0, 2)), extents=[])._repr_html_()) == ["rows", "0 of 0 rows"]
    traced = []
    jax.jit(lambda nt: traced.append(nt._repr_html_()))(nt)
    assert traced == ["<code>NestedTensor(f32[expert=3, ragged=?&lt;=384, 512])</code>"]


def test_html_shows_where_groups_lie():
    nt = jf.nested.align(jf.as_nested(jnp.ones(10), extents=[3, 0, 5]), 4)
    root = ElementTree.fromstring(nt._repr_html_())
    parts = {node.text: node for node in root.iter(f"{SVG}title")}
    assert list(parts) == ["padding", "group 0: rows 0 to 2", "group 2: rows 4 to 8"]
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert [float(rect.get("width")) for rect in rects] == pytest.approx([3 * 420 / 20, 5 * 420 / 20])
    assert rects[0].get("fill") != rects[1].get("fill")
    assert float(rects[1].get("x")) - float(rects[0].get("x")) == pytest.approx(4 * 420 / 20)


def test_html_of_many_groups():
    many = words(jf.as_nested(jnp.ones((400, 1)), extents=[1, 0] * 150)._repr_html_())
    assert many[-2:] == ["...", "mean of 236 more groups: 0.5, 118 empty"] and len(many) == 2 + 2 * 64 + 2
    outer = jf.as_nested(jnp.ones((20, 5)), extents=[[2, 3]] * 20, ragged_dim=1)._repr_html_()
    assert outer.count("<svg") == 8 and "outer index 7" in outer and "and 12 more outer indices" in outer
