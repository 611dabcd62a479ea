import math

import pytest

from ringline.topology import Mover, mover, movers


@pytest.mark.parametrize(("payload", "share"), [(2048, 0.933), (4096, 0.954), (4352, 0.957)])
def test_published_payload_shares(payload, share):
    assert mover("wormhole-ethernet").payload_share(payload) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(("packet", "bytes_per_s"), [(4096, 11.78e9), (2048, 7.71e9)])
def test_published_microbenchmark(packet, bytes_per_s):
    one = mover("n300").with_packet(packet)
    assert one.payload_bytes_per_s == pytest.approx(bytes_per_s, rel=0.03)


def test_every_value_has_a_source():
    for one in movers().values():
        assert len(one.sources) == 13
        assert all(len(source) > 10 for source in one.sources.values())


def test_unknown_name_gives_the_nearest():
    with pytest.raises(ValueError, match=r"unknown data mover 'wormhol'; did you mean 'wormhole'"):
        mover("wormhol")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bytes_per_s = -1", r"my\.toml, line 2, key 'bytes_per_s' of \[mine\]: expected a number"),
        ("hop_latency_s = -1e-9", r"line 2, key 'hop_latency_s'"),
        ("receiver_slots = 1.5", r"line 2, key 'receiver_slots' of \[mine\]: expected a whole"),
        ("slots = 4", r"line 2, key 'slots' of \[mine\]: unknown key"),
    ],
)
def test_faults_of_a_file_name_line_and_key(tmp_path, line, message):
    path = tmp_path / "my.toml"
    path.write_text(f"[mine]\n{line}\n")
    with pytest.raises(ValueError, match=message):
        mover(str(path))


def test_a_file_may_leave_out_what_costs_nothing(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[mine]\nbytes_per_s = 1e9\nhop_latency_s = 0\n")
    assert mover(str(path)) == Mover("mine", "mine", bytes_per_s=1e9)
    assert mover(str(path)).inject_bytes_per_s == math.inf


def test_values_out_of_range_name_the_field():
    with pytest.raises(ValueError, match="receiver_slots must be a whole number of at least 1"):
        Mover("none", receiver_slots=0)
