"""The native library, see engine/kernels/cpu. Addresses are integers; buffers must outlive their use."""

def instruction_sets() -> list[str]:
    """Those this processor has kernels for, fastest first."""

class ThreadPool:
    """Fixed threads, the caller's own among them. ``cpus`` may be empty: then nothing is pinned."""

    def __init__(self, threads: int, cpus: list[int], spin_microseconds: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def read_bandwidth(self, instruction_set: str, bytes: int, rounds: int) -> float:
        """Bytes a second that all threads together read; the best round."""

class AttentionContext:
    """One KV storage's layout. Formats: 0 float32, 1 bfloat16, 2 float16, 3 int8."""

    def __init__(
        self,
        pool: ThreadPool,
        instruction_set: str,
        *,
        layers: int,
        heads: int,
        kv_heads: int,
        dim: int,
        page_size: int,
        kv_format: int,
        io_format: int,
        scale: float,
        softcap: float,
        windows: list[int],
        pages: int,
        num_pages: int,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def page_bytes(self) -> int: ...

class AttentionPlan:
    """One iteration's attention; ``prepare`` may be called again and again."""

    def __init__(self, context: AttentionContext) -> None: ...
    def prepare(self, sequences: int, rows: int, starts: int, page_starts: int, page_ids: int) -> None:
        """Addresses of int64 arrays: rows and first positions, [sequences]; starts in page_ids, one more."""

    def append(self, layer: int, kv: int) -> None: ...
    def attend(self, layer: int, queries: int, outputs: int) -> None: ...
    def append_and_attend(self, layer: int, kv: int, queries: int, outputs: int) -> None: ...

class AttentionDriver:
    """A thread that computes plans' layers while its caller does other work."""

    def __init__(self, spin_microseconds: int) -> None: ...
    def submit(
        self,
        plan: AttentionPlan,
        *,
        first_layer: int,
        layers: int,
        kv: int,
        kv_stride: int,
        queries: int,
        outputs: int,
        stride: int,
        gates: int,
        gate_value: int,
        done: int,
        done_value: int,
        event_fd: int,
    ) -> int:
        """Take over consecutive layers; layer i's buffers are i strides (bytes) further on.

        ``kv``, ``gates`` and ``done`` may be 0, ``event_fd`` -1. ``gates`` and ``done`` are uint32 [layers].
        Returns the first layer's ticket; the others follow.
        """

    def state(self, ticket: int) -> int:
        """0 waiting, 1 running, 2 done, 3 cancelled."""

    def wait(self, ticket: int, timeout_microseconds: int) -> bool: ...
    def cancel(self, ticket: int) -> bool: ...
    def notify(self) -> None: ...

class BatchSampler:
    """Rows of logits to tokens, each by itself: engine/sampling, natively. One caller at a time."""

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None: ...
    def sample(
        self,
        logits: int,
        stride: int,
        rows: int,
        vocabulary: int,
        specs: bytes,
        *,
        added_ids: int,
        additions: int,
        history: int,
        tokens: int,
        logprobs: int,
        top_ids: int,
        top_logprobs: int,
        width: int,
    ) -> None:
        """Addresses: float32 logits, ``stride`` elements from row to row; what changes them, int64, float64
        and int64; results, int64 [rows], float64 [rows], int64 and float64 [rows][width]. ``specs`` is a
        packed RowSpec (engine/kernels/cpu/sampling/row_sampler.h) for each row.
        """
