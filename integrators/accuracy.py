"""Weak orders of a step, read off its word and its flows."""

from collections.abc import Collection, Mapping

from recipe.symbols import Block

from .flow import Flow
from .scheme import Scheme


def weak_order(scheme: Scheme, flows: Mapping[str, Flow]) -> int:
    """Weak order for the whole state: 2 for a palindrome of flows that are exact or of even order, else 1."""
    return 2 if scheme.is_palindrome and all(flows[letter].even for letter in scheme.letters) else 1


def marginal_order(scheme: Scheme, flows: Mapping[str, Flow], targets: Collection[Block]) -> int:
    """Weak order for the target's marginal: pieces that leave the target alone may move around the cycle, or be cut.

    F A and A F have the theta-marginal of F/2 A F/2, a palindrome.
    """
    idle = {letter for letter in scheme.letters if not any(b in targets for b in flows[letter].updates)}
    words = _turned(scheme, idle)
    for word in words[:]:
        first, _ = word.moves[0]
        if first in idle and flows[first].exact:
            words.append(_halved(word))
    return max(weak_order(word, flows) for word in words)


def _turned(scheme: Scheme, idle: Collection[str]) -> list[Scheme]:
    """The word and its rotations that move idle letters from the front to the back, or from the back to the front."""
    moves = [letter in idle for letter, _ in scheme.moves]
    if all(moves):
        return [scheme]
    front = moves.index(False)
    back = moves[::-1].index(False)
    return [scheme.rotated(k) for k in (*range(front + 1), *range(-back, 0))]


def _halved(scheme: Scheme) -> Scheme:
    """The word with its first move cut in two, one half at each end."""
    (letter, share), *rest = scheme.moves
    half = (letter, share / 2)
    return Scheme(scheme.text, (half, *rest, half))
