import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from ringline.train._distributed import Processes, _check_address, start

MODEL = ["--d-model", "16", "--heads", "2", "--kv-heads", "1", "--d-ff", "32", "--seq", "16"]
RUN = ["--steps", "4", "--eval-batches", "1", "--sample-bytes", "4", "--peak-tflops", "1"]
COMMAND = [sys.executable, "-c", "import ringline.cli, sys; sys.exit(ringline.cli.main())", "train"]


def test_one_process_needs_nothing(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    assert Processes.find(None, None, None) == Processes(None, 0, 1)


def test_the_environment_is_read_and_flags_win(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "a:1")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    assert Processes.find(None, None, None) == Processes("a:1", 1, 2)
    assert Processes.find("b:2", 0, None) == Processes("b:2", 0, 2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES must be a whole number, got 'two'"):
        Processes.find(None, None, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a:1", None, 2), "need --coordinator, --process-id and --num-processes"),
        ((None, 0, 2), "need --coordinator"),
        (("a:1", 2, 2), r"must lie in 0\.\.1, got 2"),
    ],
)
def test_a_part_of_the_three_is_refused(monkeypatch, given, message):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=message):
        Processes.find(*given)


def test_devices_must_spread_evenly():
    with pytest.raises(ValueError, match="multiple of the processes, got 8 and 3"):
        start(8, Processes("localhost:1", 0, 3))


def test_a_host_name_that_means_loopback_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    _check_address("localhost:1")
    with pytest.raises(ValueError, match=r"means 127\.0\.1\.1.*/etc/hosts"):
        _check_address("10.0.0.1:1234")


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path):
    one = _run([tmp_path / "one"], [[]])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    both = [
        ["--coordinator", coordinator, "--num-processes", "2", "--process-id", str(rank)]
        for rank in range(2)
    ]
    two = _run([tmp_path / "two"] * 2, both)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-5)
    np.testing.assert_allclose(two["eval_loss"], one["eval_loss"], rtol=1e-5)
    assert two["sample"] == one["sample"]


def _run(folders, extra):
    """Start one process a folder, wait for all, and read the results. None outlives the test."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    running = [
        subprocess.Popen(
            [*COMMAND, *MODEL, *RUN, "--out", str(folder), *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for folder, more in zip(folders, extra)
    ]
    try:
        outputs = [process.communicate(timeout=400)[0] for process in running]
    finally:
        for process in running:
            # jax.distributed catches SIGTERM, so nothing less ends a process that hangs.
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    assert [process.returncode for process in running] == [0] * len(running), outputs
    # Only the first process speaks, but for the lines of the collectives' library.
    assert "step: 1 " in outputs[0]
    assert not any("step: " in output for output in outputs[1:])
    return json.loads((folders[0] / "results.json").read_text())
