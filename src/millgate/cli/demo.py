"""`millgate demo`: what the gate is for, on real processes. The options are explained by their own record."""

from typing import Any

from millgate.cli.exits import usage_error
from millgate.cli.flags import read_flags, taking
from millgate.cli.sim import JsonOption, seconds

_FLAGS = read_flags("""
--load | load | number | 2.7 | Offered load over what the engine can do.
--at-once | at_once | integer | 0 | Instead of a steady load: so many requests at the same moment.
--for | run_s | text TIME | 60s | How long requests arrive.
--cap | cap | integer | 16 | The engine's batch, and the limit of the gate.
--max-queue | max_queue | integer | what can be served in time | The gate's queue.
--ttft-slo | ttft_slo_s | text TIME | 5s | Time to the first token that is still good.
--patience | patience_s | text TIME | 10s | How long a user waits for the first token of one attempt.
--retries | retries | integer | 3 | How often a user tries again.
--max-tokens | max_tokens | text | exact | What requests allow: `exact` is the true length, a number is the same for all.
--ignore-hangups | ignore_hangups | switch | | The engine generates on for users who left.
--profile | profile | text | llama3-70b_h100_tp4 | The engine's speed profile.
--time-scale | time_scale | number | 2.0 | How many times as fast as real time, at most 10.
--seed | seed | integer | 1 | Seed of arrivals, sizes and back-off.
--peer | peer | text | haproxy | Run `haproxy` as well, where it is installed; `none` leaves it out.
""")


@taking(_FLAGS)
def demo(*, as_json: JsonOption = False, **given: Any) -> int:
    """Compare no gate, the gate and HAProxy under overload, with the best that could have been done."""
    from millgate.demos.overload import OverloadOptions, run

    flags = {each.target: each.flag for each in _FLAGS}
    for time in given.keys() & {"run_s", "ttft_slo_s", "patience_s"}:
        given[time] = seconds(flags[time], given[time])
    try:
        options = OverloadOptions(json=as_json, **given)
    except ValueError as error:
        raise usage_error(error, flags) from None
    return run(options)
