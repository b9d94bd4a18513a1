"""Every limit, its unit in its name, and what breaks beyond it.

Settings that an operator may change live in the config; what stands here bounds those settings
or protects the process whatever the config says.
"""

from typing import Final

# --- the wire -----------------------------------------------------------------------------------
BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest request body (Anthropic documents 32 MB). Beyond: one client can exhaust memory."""

BODY_IDLE_S_MAX: Final = 30.0
"""Longest wait for the next part of a body. Beyond: slow senders hold connections for ever."""

SSE_LINE_BYTES_MAX: Final = 32 * 1024
"""Longest SSE line. Beyond: aiohttp clients stop with "Chunk too big" (limit 64 kB a line)."""

SSE_PING_S: Final = 10.0
"""Longest silence in a stream. Beyond: Claude Code's 20 s watchdog kills the stream."""

QUEUE_PING_S: Final = 2.0
QUEUE_PING_S_MIN: Final = 0.1
"""How often a stream says where its request stands. Less: thousands that wait keep a core busy."""

STREAM_HOLD_S: Final = 2.0
"""How long a stream's status line is held back for a first token or an early failure."""

STOP_STRINGS_MAX: Final = 16
"""Stop strings in one request. Beyond: each chunk of text costs a scan a string."""

STOP_STRING_CHARS_MAX: Final = 1024
"""Longest stop string. Beyond: that much text would be held back from the stream."""

CHOICES_MAX: Final = 128
"""Largest `n`. Beyond: one request fills a tenant's queue at once."""

TOP_LOGPROBS_MAX: Final = 20
"""Largest `top_logprobs` (OpenAI's own bound). Beyond: replies grow by kilobytes a token."""

LOGIT_BIAS_ENTRIES_MAX: Final = 1024
"""Entries in `logit_bias`. Beyond: each step scatters them into the logits."""

LOGPROB_FLOOR: Final = -9999.0
"""Smallest log-probability sent. Beyond: -Infinity is not JSON."""

COMPLETION_MAX_TOKENS_DEFAULT: Final = 16
"""`/v1/completions` default, as OpenAI's."""

RETRY_AFTER_S_MIN: Final = 1
RETRY_AFTER_S_MAX: Final = 60
"""Bounds of `Retry-After`. Beyond 120 s the OpenAI SDK does not retry at all."""

# --- quotas -------------------------------------------------------------------------------------
QUOTA_WINDOW_MS: Final = 60_000
"""The minute of "tokens per minute", sliding. Beyond: the quotas' names would lie."""

QUOTA_TICK_MS: Final = 1_000
"""Used tokens are forgotten in steps of this. Beyond: memory a tenant (60 counts a limit)."""

QUOTA_HELD_RETRY_MS: Final = 1_000
"""`Retry-After` when only requests under way stand in the way; they may end at any moment."""

QUOTA_OUTPUT_TOKENS_MIN: Final = 1
"""Least output left of a quota that still lets a request in (it then ends early)."""

RESERVED_BURST_MS: Final = 60_000
"""Bought tokens a quiet tenant may use at once. Beyond: its bursts crowd other reservations."""

RESERVED_OVERSIZE_SHARE: Final = 0.5
"""Bought tokens that must be left, of a minute's worth, for a request larger than all of it. Less:
such requests follow each other before the tenant has paid for the one before."""

SPEED_WINDOW_MS: Final = 10_000
"""Engine time over which a model's speed is measured. Less: a lucky moment is sold for ever."""

# --- the scheduler's memory ---------------------------------------------------------------------
OUTPUT_MEANS_MAX: Final = 100_000
"""Tenants whose usual output is remembered. Beyond: the one unseen longest gets the first guess."""

# --- reports ------------------------------------------------------------------------------------
REPORT_SLICE_MS: Final = 60_000.0
REPORT_SLICES: Final = 6
"""What the report of shares remembers: five to six minutes. Beyond: memory, tenant by tenant."""

REPORT_TENANTS_MAX: Final = 10_000
"""Tenants and lanes a slice of the report tells apart. Beyond: they are counted together."""

REPORT_ROWS_MAX: Final = 10_000
"""Rows in one report. Beyond: writing it holds up the event loop."""

# --- text ---------------------------------------------------------------------------------------
TEMPLATE_RENDER_S_MAX: Final = 2.0
"""Time for one chat template. Beyond: a hostile model file owns a core."""

TEMPLATE_OUTPUT_CHARS_MAX: Final = 64 * 1024 * 1024
"""Text one chat template may write. Beyond: a hostile model file exhausts memory."""

TEMPLATE_SOURCE_CHARS_MAX: Final = 128 * 1024
"""Longest chat template. Beyond: compiling it alone takes seconds."""

TEMPLATE_SCRATCH_FACTOR: Final = 8
"""Text that one render may create, as a multiple of what it may write. Beyond: memory."""

TEMPLATE_NODES_MAX: Final = 1_000_000
"""Values in one nested list a template makes. Beyond: comparing or printing it owns a core."""

TEMPLATE_COUNT_MAX: Final = 100_000
"""Largest width or count a template gives to a filter or method. Beyond: padding as an attack."""

TEMPLATE_INTEGER_BITS_MAX: Final = 16_384
"""Largest integer a template may compute. Beyond: arithmetic itself becomes slow."""

TEMPLATE_JSON_PADDING_CHARS_MAX: Final = 64
"""Longest `indent` or separator of `tojson`. Beyond: it is written once a value."""

# --- constrained output -------------------------------------------------------------------------
GRAMMAR_CHARS_MAX: Final = 256 * 1024
"""Longest schema, pattern or grammar. Beyond: nobody wrote it by hand, compiling takes seconds."""

GRAMMAR_ITEMS_MAX: Final = 200_000
"""Largest compiled grammar. Beyond: a few lines (`{1,10000}` nested) grow without end."""

GRAMMAR_LEXER_STATES_MAX: Final = 100_000
"""States of a grammar's lexer. Beyond: a pattern's memory grows without end."""

GRAMMAR_DEPTH_MAX: Final = 64
"""Deepest schema that is searched for what cannot be enforced. Beyond: the fault is not located."""

# --- the worker link ----------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
"""Largest message between dispatcher and worker (a parked sequence's KV). Beyond: corrupt link."""

HEARTBEAT_S: Final = 0.2
"""A worker says it lives this often."""

HEARTBEAT_MISSED_S_MAX: Final = 1.0
"""Silence after which a worker counts as lost (issue: death is noticed within 1 s)."""

STEP_S_MAX: Final = 60.0
"""One engine step may take this long. Beyond: the worker counts as stalled."""

WORKER_START_S_MAX: Final = 60.0
"""From spawn to a worker's first word (Python's imports, on a busy machine). Beyond: it is lost."""

WORKER_CLOSE_S_MAX: Final = 3.0
"""How long a worker may take to end by itself. Beyond: it is killed."""

ATTEMPTS_MAX: Final = 3
"""Tries of one request. Beyond: a request that kills engines would kill them all."""
