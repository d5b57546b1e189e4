"""Work that is spread over Ray: the same results as alone, and a killed worker loses and repeats nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest

from tiny import tiny_bert
from toolscout.encoders import shards
from toolscout.errors import Unavailable
from toolscout.home.catalogue import vector_cache
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.search.home_resources import HomeResources
from toolscout.settings import Settings

TEXTS = [f"send the message {number} to the city of {'rain ' * (number % 7)}" for number in range(40)]


def test_alone_each_piece_is_done_in_order_when_it_is_asked_for() -> None:
    done: list[int] = []
    results = shards.map_shards(lambda shard: done.append(shard) or 2 * shard, [3, 1, 2])
    assert next(results) == (0, 6) and done == [3]
    assert list(results) == [(1, 2), (2, 4)]


def test_finished_batches_are_kept_when_a_later_one_fails_and_never_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_cache, "EMBED_BATCH", 10)
    encoded: list[str] = []

    class Encoder:
        name, dim, fingerprint, cheap, languages, fails = "counting", 4, "counting/1", False, None, True

        def encode(self, texts: list[str], kind: str = "query") -> np.ndarray:
            if self.fails and len(encoded) >= 20:
                raise Unavailable("The encoder does not answer.")
            encoded.extend(texts)
            return np.array([[len(text), text.count("rain"), 1, 0] for text in texts], dtype=np.float32)

    encoder, vectors = Encoder(), VectorStore(tmp_path)
    workspace = HomeResources(encoder, Settings(home=tmp_path), vectors)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        workspace.encode_queries(encoder, TEXTS)  # type: ignore[arg-type]
    assert len(encoded) == 20
    encoder.fails = False
    rows = workspace.encode_queries(encoder, TEXTS)  # type: ignore[arg-type]
    assert sorted(encoded) == sorted(TEXTS), "each once"
    assert rows[:, 0].tolist() == [len(text) for text in TEXTS]
    vectors.close()


# --- on Ray, in a process of its own: it starts workers

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from toolscout.encoders.shards import map_shards

    folder = Path(sys.argv[1])

    def work(number):
        with (folder / f"begun-{number}").open("a") as log:
            log.write("x")
        if number == 4 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"done-{number}").open("a").write("x")
        return number * number

    assert dict(map_shards(work, range(9), sys.argv[2])) == {number: number * number for number in range(9)}

    def refuse(number):
        raise ValueError(f"not {number}")

    try:
        list(map_shards(refuse, [7], sys.argv[2]))
    except ValueError as error:
        assert str(error) == "not 7"
    else:
        raise SystemExit("the error of the work was lost")
"""
ENCODED = """
    import sys
    from pathlib import Path
    import numpy as np
    from toolscout.home.catalogue import vector_cache
    from toolscout.home.catalogue.vector_cache import VectorStore
    from toolscout.settings import load_settings
    from toolscout.search.home_resources import HomeResources

    folder, encoder, texts = Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
    vector_cache.EMBED_BATCH = 10
    rows = []
    for name, ray in (("alone", None), ("ray", "local")):
        workspace = HomeResources(encoder, load_settings(home=folder / name, ray=ray), VectorStore(folder / name))
        rows.append(workspace.encode_queries(workspace.load_encoder(), texts))
    assert rows[0].shape == (40, 16) and np.array_equal(*rows)
"""


def run_script(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_killed_worker_loses_nothing_and_repeats_nothing_that_was_done(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    run_script(KILLED, str(tmp_path), shards.LOCAL_WORKERS)
    assert (tmp_path / "killed").exists() and (tmp_path / "begun-4").read_text() == "xx"
    assert [(tmp_path / f"done-{number}").read_text() for number in range(9)] == ["x"] * 9


@pytest.mark.full
@pytest.mark.timeout(240)
def test_vectors_are_the_same_on_ray_as_alone(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    run_script(ENCODED, str(tmp_path), str(tiny_bert(tmp_path / "encoder")), repr(TEXTS))


def test_a_cluster_that_does_not_answer_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **options: object) -> None:
        raise ConnectionError(f"ray client connection to {address} timed out\nand more")

    ray = types.SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)  # a real one waits for a minute
    with pytest.raises(Unavailable, match=r"^Ray at head:1 does not answer: .* timed out. Check that it runs.$"):
        list(shards.map_shards(len, ["x"], "head:1"))
