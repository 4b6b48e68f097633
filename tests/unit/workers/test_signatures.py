"""Signatures: equal for equal faults on any host and day, different for different faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.signatures import (
    Failure,
    FailureKind,
    failure_in_log,
    failure_kind,
    failure_signature,
    normalise,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("object at 0x7f00aa11", "object at 0x55d0bb22"),
        ("size of tensor a (4096) must match b (512)", "size of tensor a (1048576) must match b (3)"),
        ("shapes cannot be multiplied (16x128 and 64x32)", "shapes cannot be multiplied (8x12 and 6x3)"),
        ("no file '/tmp/a1/trial/x.json'", "no file '/data/b/x.json'"),
        ("commit 12ab34f is bad", "commit fe09dc1 is bad"),
        ("took 1.5e-3 s on cuda:0", "took 22 s on cuda:7"),
        ("two\n\tlines  here", "two\nother lines"),
    ],
)
def test_what_differs_from_run_to_run_is_normalised(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no attribute 'a'", "no attribute 'b'"),
        ("expected bf16", "expected fp8"),
        ("bad module defaced", "bad module effaced"),
    ],
)
def test_what_tells_faults_apart_stays(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_a_signature_names_the_innermost_frame_of_the_states_own_files(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "a.py").touch()
    failure = Failure(
        type="torch.nn.SomeError",
        message="width 512 is odd",
        frames=["train.py:<module>", "recipes/a.py:build", "torch/nn/modules/linear.py:forward"],
    )
    assert failure_signature(failure, [tmp_path]) == "SomeError: width <n> is odd @ recipes/a.py:build"
    absolute = Failure(type="E", message="", frames=[f"{tmp_path}/recipes/a.py:build", "/usr/lib/x.py:f"])
    assert failure_signature(absolute, [tmp_path]) == "E @ recipes/a.py:build"
    assert (
        failure_signature(Failure(type="E", message="", frames=["/usr/lib/x.py:f"]), [tmp_path])
        == "E @ x.py:f"
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 104.00 MiB",
            FailureKind.DEVICE_MEMORY,
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", FailureKind.DEVICE_MEMORY),
        ("RuntimeError: Triton Error [CUDA]: out of memory", FailureKind.DEVICE_MEMORY),
        ("CUDA Error: out of memory at cumem_allocator.cpp:62", FailureKind.DEVICE_MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", FailureKind.DEVICE_MEMORY),
        ("ncclUnhandledCudaError: Cuda failure 2 'out of memory'", FailureKind.DEVICE_MEMORY),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: 1 bytes", FailureKind.HOST_MEMORY),
        ("MemoryError", FailureKind.HOST_MEMORY),
        ("RuntimeError: The server socket failed to bind: Address already in use", FailureKind.FLAKY),
        ("torch.distributed.DistNetworkError: the client socket timed out", FailureKind.FLAKY),
        ("NCCL WARN Cuda failure 'out of memory'", FailureKind.DEVICE_MEMORY),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nCuda failure 1 'invalid argument'",
            FailureKind.DOUBTFUL,
        ),
        (
            "[rank0]:[E321 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds",
            FailureKind.HANG,
        ),
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", FailureKind.HANG),
        (
            "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            FailureKind.HANG,
        ),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", FailureKind.CODE),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690", FailureKind.FLAKY),
        ("NCCL WARN Call to ibv_modify_qp failed", FailureKind.FLAKY),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load this file", FailureKind.FLAKY),
        ("CUDA error: uncorrectable ECC error encountered\nset CUDA_LAUNCH_BLOCKING=1", FailureKind.FLAKY),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", FailureKind.DOUBTFUL),
        ("CUDA error: an illegal instruction was encountered", FailureKind.DOUBTFUL),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", FailureKind.DOUBTFUL),
        ("CUDA error: unspecified launch failure\nset CUDA_LAUNCH_BLOCKING=1", FailureKind.DOUBTFUL),
        ("NCCL watchdog thread terminated: DistBackendError: illegal memory access", FailureKind.DOUBTFUL),
        ("free(): double free detected in tcache 2", FailureKind.DOUBTFUL),
        ("rerun state machine: found NaN in local grad norm", FailureKind.DOUBTFUL),
        ("ValueError: out of the memory of man", FailureKind.CODE),
    ],
)
def test_the_text_tells_whose_memory_and_what_comes_and_goes(text: str, kind: FailureKind) -> None:
    assert failure_kind(Failure(type="", message="", text=text)) is kind


def test_the_last_traceback_of_a_log_is_read() -> None:
    log = (
        "start\nTraceback (most recent call last):\n  File \"/a/old.py\", line 1, in f\nKeyError: 'x'\n"
        "step 1\nTraceback (most recent call last):\n"
        '  File "/a/train.py", line 9, in <module>\n    main()\n  File "/a/recipes/r.py", line 3, in main\n'
        "    raise ValueError('no')\nmy.package.BadValueError: no 5\nrank 0 ends\n"
    )
    failure = failure_in_log(log)
    assert failure is not None
    assert (failure.type, failure.message) == ("my.package.BadValueError", "no 5")
    assert failure.frames == ["/a/train.py:<module>", "/a/recipes/r.py:main"]
    assert failure_in_log("nothing here") is None
