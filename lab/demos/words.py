"""What demonstrations say of their numbers and of their users."""

WASTED_MEANS = "tokens that the engine generated for clients who had left, of all that it generated"
PREFILL_MEANS = "prompt tokens computed for requests that did not finish whole, of all that were computed"


def manners_mean(patience_s: float, refreshes: int) -> str:
    """Say how the users of a run behave."""
    return (
        f"Users hang up after {patience_s:g} s without a token and ask again at once, at most {refreshes} times; "
        "told when to come back they come back then, told not to they go."
    )
