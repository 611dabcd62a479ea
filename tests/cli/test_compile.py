"""`ringline compile`: a report of any program, and one line for what is wrong."""

import json
import re

import pytest

from ringline.cli._compile import CompileFlags, run

OWN = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def build(mesh):
    w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp")))

    def step(w, x):
        y, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=3)
        return jnp.sum(y)

    return jax.grad(step), (w, jax.ShapeDtypeStruct((512, 512), jnp.bfloat16))


def wrong(mesh):
    def step(w):
        return w @ jnp.ones((3, 3))

    return step, (jax.ShapeDtypeStruct((8, 8), jnp.float32),)


def large(mesh):
    return (lambda w: w @ w), (jax.ShapeDtypeStruct((90_000, 90_000), jnp.float32),)


def nothing(mesh):
    return None
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return f"{path}:"


def lines(text):
    """What is left of standard error without progress."""
    progress = ("ringline: tracing", "ringline: compiling", "ringline: reading")
    return [line for line in text.splitlines() if not line.startswith(progress)]


def test_a_function_of_the_users(libtpu, own, capfd, tmp_path):
    page, text = tmp_path / "page.html", tmp_path / "program.txt"
    flags = CompileFlags(
        target="2x v5e-4",
        function=own + "build",
        mesh="data=2,fsdp=-1",
        json="-",
        html=page,
        text=text,
    )
    assert run(flags) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["mesh"] == {"data": 2, "fsdp": 4}
    assert document["memory"]["fits"]
    assert set(document["memory"]) >= {
        *("arguments_bytes", "temporaries_bytes", "outputs_bytes", "limit_bytes"),
    }
    gather = next(c for c in document["collectives"] if c["kind"] == "all-gather")
    assert set(gather) >= {
        *("name", "kind", "link", "axis", "bytes", "in_loop", "times_per_step"),
        *("spans_compute_us", "transfer_us", "exposed"),
    }
    assert (gather["axis"], gather["link"]) == ("fsdp", "ICI")
    assert gather["name"] in text.read_text()
    assert "trips of loop" in page.read_text()
    assert '<th scope="row">all-gather</th>' in page.read_text()
    words = re.sub(r"<(style|script).*?</\1>", "", page.read_text(), flags=re.S)
    assert "the program of every device" in words
    assert not re.search(r"stage|microbatch|bubble|activation", words, re.I)
    assert lines(err) == []
    assert "compiling for 2x v5e-4" in err


def test_a_table_in_the_terminal(libtpu, own, capfd):
    assert run(CompileFlags(target="v5e-4", function=own + "build")) == 0
    out = capfd.readouterr().out
    assert "the compiler's estimate" in out
    assert "all-gather" in out
    assert "fsdp 4" in out


def test_an_error_of_the_users_function_is_shown_once_with_its_line(libtpu, own, capfd):
    assert run(CompileFlags(target="v5e-4", function=own + "wrong")) == 1
    (line,) = lines(capfd.readouterr().err)
    number = OWN.splitlines().index("        return w @ jnp.ones((3, 3))") + 1
    assert f"own.py:{number}: TypeError" in line
    assert line.count("dot_general") == 1


def test_a_program_that_does_not_fit(libtpu, own, capfd):
    assert run(CompileFlags(target="v5e-4", function=own + "large", json="-")) == 1
    out, err = capfd.readouterr()
    assert not json.loads(out)["memory"]["fits"]
    (line,) = lines(err)
    assert "44.67 GiB more than" in line
    assert line.count("f32[90000,90000]") == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (CompileFlags(target="v9-64"), "did you mean"),
        (CompileFlags(target="v5e-64", config="no.toml"), "cannot read"),
        (CompileFlags(target="v5e-64", config="foo"), "unknown recipe"),
        (CompileFlags(target="4x v4-16", schedule=("foo",)), "no schedule is called"),
        (CompileFlags(target="4x v4-16", gather="never"), "gather must be one of"),
        (CompileFlags(target="4x v4-16", microbatches=0), "--microbatches"),
        (CompileFlags(target="v5e-4", mesh="a=4"), "--mesh goes with --function"),
        (CompileFlags(function="a.py:b"), "needs --target"),
        (CompileFlags(target="v5e-4", function="a.py:b"), "does not exist"),
        (CompileFlags(target="v5e-4", function="b"), "FILE.py:NAME"),
        (CompileFlags(target="v5e-4", function="no_such_module:b"), "no module 'no_such_module'"),
        (CompileFlags(target="v5e-4", function="sys:path"), "'path' that is no function"),
        (CompileFlags(target="v5e-4", function="a.py:b", mesh="a"), "must be such as"),
        (CompileFlags(target="v5e-4", function="a.py:b", mesh="a=3"), "change an axis"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_one_line(libtpu, flags, says):
    with pytest.raises(ValueError, match=r".") as error:
        run(flags)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_builder_that_gives_something_else(libtpu, own):
    with pytest.raises(ValueError, match=r"nothing\(mesh\) must give"):
        run(CompileFlags(target="v5e-4", function=own + "nothing"))


def test_without_libtpu_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("ringline.aot._target.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ringline\[aot\]'") as error:
        run(CompileFlags(target="4x v4-16"))
    assert error.value.name == "libtpu"


RUN = """
d_model = 32
layers = 4
heads = 2
kv_heads = 1
d_ff = 64
seq = 32
batch = 32
stages = 2
microbatches = 4
schedule = "linear"
"""


@pytest.mark.slow
def test_the_trainers_step(libtpu, tmp_path, capfd):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    assert run(CompileFlags(target="2x v5e-4", config=str(path), json="-")) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["mesh"] == {"stage": 2, "fsdp": 4}
    assert any(c["link"] == "DCN" and c["in_loop"] for c in document["collectives"])


@pytest.mark.slow
def test_a_trainer_that_does_not_fit_names_its_largest_buffers(libtpu, tmp_path, capfd):
    path = tmp_path / "run.toml"
    wide = {"d_model = 32": "d_model = 8192", "d_ff = 64": "d_ff = 65536"}
    text = RUN
    for small, large in wide.items():
        assert small in text
        text = text.replace(small, large)
    path.write_text(text)
    assert run(CompileFlags(target="2x v5e-4", config=str(path))) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert "more than the" in line
    assert line.count("GiB argument") + line.count("GiB temporary") >= 3


@pytest.mark.slow
def test_a_recipe_with_its_prediction(libtpu, tmp_path, capfd):
    path = tmp_path / "small.toml"
    path.write_text(
        '[recipe]\ntarget = "2x v5e-4"\nstages = 2\nmicrobatches = 4\nd_model = 128\n'
        'mlp = 512\nlength = 128\nschedule = "eager-1f1b"\nassumes = ["nothing"]\n'
    )
    page = tmp_path / "page.html"
    flags = CompileFlags(config=str(path), json=str(tmp_path / "out.json"), html=page)
    assert run(flags) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    rows = {row["what"]: row for row in document["comparison"]}
    assert abs(rows["matrix products, bubbles included"]["difference"]) < 0.03
    assert document["assumes"] == ["nothing"]
    out = capfd.readouterr().out
    assert "prediction against program" in out
    assert "matrix products, bubbles included" in out
    assert "…" not in out
    assert "Assumed: nothing" in out
    assert "eager-1f1b: one of" in page.read_text()
    assert '"forward"' in page.read_text()
    assert '"backward"' in page.read_text()
