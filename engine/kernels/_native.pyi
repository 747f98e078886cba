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

def quantise_weights(format: int, values: int, count: int, blocks: int) -> None:
    """Round float32 numbers to blocks of Q8_0, Q4_0 or Q4_1 as a GGUF file has them.

    Raises:
        ValueError: another format, or ``count`` is no multiple of 32.
    """

class PreparedRows:
    """Float activations as products want them; memory is kept for the next ones. One user at a time."""

    def __init__(self, instruction_set: str) -> None: ...
    def dequantise(self, row: int, out: int) -> None:
        """What the integers of a row stand for, [inputs]."""

class Matrix:
    """A weight, packed once. ``format`` is GGUF's number: 0 F32, 1 F16, 30 BF16, 2 Q4_0, 3 Q4_1, 6 Q5_0,

    7 Q5_1, 8 Q8_0, 12 Q4_K, 13 Q5_K, 14 Q6_K. Products with integer formats round activations to 8 bits, in
    blocks of 32. A row with something that is not finite has no number in its outputs.
    """

    def __init__(
        self, inputs: int, sources: list[tuple[int, int, int, int]], instruction_set: str, pool: ThreadPool
    ) -> None:
        """Sources, whose outputs follow one another: format, outputs, address of the rows as in a GGUF
        file, and of int64 [outputs] with the row that each output is, or 0. They are copied.

        Raises:
            ValueError: an unknown format, rows that are not whole blocks, or an order beyond the rows.
        """

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def multiply(self, rows: PreparedRows, out: int, out_stride: int, bias: int, pool: ThreadPool) -> None:
        """To float32 [rows][outputs], rows ``out_stride`` floats apart; ``bias`` [outputs] or 0.

        Raises:
            ValueError: the rows were prepared for something else.
        """

    def apply(
        self,
        prepared: PreparedRows,
        values: int,
        count: int,
        stride: int,
        out: int,
        out_stride: int,
        bias: int,
        pool: ThreadPool,
    ) -> None:
        """Prepare [count][inputs] floats, rows ``stride`` floats apart, and ``multiply``."""

    def rows(self, ids: int, count: int, out: int) -> None:
        """Outputs as floats, [count][inputs], by int64 ids: an embedding's lookup.

        Raises:
            IndexError: there is no such output.
        """

class StepLinear:
    """A matrix, and its bias or nothing."""

    def __init__(self, matrix: Matrix, bias: list[float]) -> None: ...

class StepLayer:
    """One layer of a step, see ``engine.models.parts.LayerParts``; norms that are not there are empty."""

    def __init__(
        self,
        *,
        qkv: StepLinear,
        output: StepLinear,
        gate_up: StepLinear,
        down: StepLinear,
        input_norm: list[float],
        query_norm: list[float],
        key_norm: list[float],
        attention_norm: list[float],
        mlp_input_norm: list[float],
        mlp_norm: list[float],
        sliding: bool,
    ) -> None: ...

class Step:
    """All layers of an iteration and its logits in one call. Activations: 0 silu, 1 gelu_tanh."""

    def __init__(
        self,
        pool: ThreadPool,
        instruction_set: str,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        dim: int,
        inner: int,
        eps: float,
        activation: int,
        embedding: Matrix,
        embedding_scale: float,
        layers: list[StepLayer],
        final_norm: list[float],
        head: Matrix,
        full_frequencies: list[float],
        sliding_frequencies: list[float],
    ) -> None: ...
    def run(
        self,
        plan: AttentionPlan,
        rows: int,
        token_ids: int,
        positions: int,
        sampled: int,
        sample_rows: int,
        logits: int,
    ) -> None:
        """Addresses of int64 arrays, and of float32 [sampled][vocabulary] for the logits."""

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
