"""Tables of distinct integers for vectors of look-ups: hash and displace, without collisions."""

from __future__ import annotations

import numpy as np

from ...dataclass import dataclass

SPARE = 4
"""Least slots for each key: most multipliers then separate the keys of each bucket, by the bound on collisions of
multiplicative hashing [Dietzfelbinger et al., 1997]."""

FOLD, FOLD_MASK = 32, (1 << 32) - 1
"""Bits of the lower half of a key, and their mask."""


@dataclass(frozen=True)
class HashTable:
    """A perfect hash of distinct integers, computed without branches.

    The slot of ``key`` is ``((h >> slot_shift) + moves[(h >> bucket_shift) & (len(moves) - 1)]) & (slots - 1)`` with
    ``h = (key ^ ((key >> FOLD) & FOLD_MASK)) * multiplier`` modulo 2**64, in int64.

    Attributes:
        multiplier: an odd number.
        slot_shift, bucket_shift: see above.
        moves: displacement of each bucket's keys, int64; their number is a power of 2.
        slots: number of slots, a power of 2.
    """

    multiplier: int
    slot_shift: int
    bucket_shift: int
    moves: np.ndarray
    slots: int

    def slot(self, keys: np.ndarray) -> np.ndarray:
        """Return the slot of each integer (int64)."""
        h = folded(keys) * np.int64(self.multiplier)
        return (h >> self.slot_shift) + self.moves[(h >> self.bucket_shift) & len(self.moves) - 1] & self.slots - 1


def folded(keys: np.ndarray) -> np.ndarray:
    """Return the keys with their upper halves added to the lower ones (exclusive or); they stay distinct.

    A product moves no bit down: without this, keys that end in many zeros would share few buckets.
    """
    return keys ^ ((keys >> FOLD) & FOLD_MASK)


def hash_table(keys: np.ndarray) -> HashTable:
    """Return a perfect hash of distinct int64 keys, at least one key."""
    keys, random = folded(keys), np.random.default_rng(0)
    bucket_bits, slot_bits = (keys.size - 1).bit_length(), (SPARE * keys.size - 1).bit_length()
    shifts = 64 - slot_bits, 64 - slot_bits - bucket_bits
    while True:
        multiplier = int(random.integers(-(1 << 62), 1 << 62)) * 2 + 1
        moves = _displacements(keys * np.int64(multiplier), *shifts, bucket_bits, 1 << slot_bits)
        if moves is not None:
            return HashTable(multiplier, *shifts, moves, 1 << slot_bits)


def _displacements(
    hashes: np.ndarray, slot_shift: int, bucket_shift: int, bucket_bits: int, slots: int
) -> np.ndarray | None:
    """Return the displacement of each bucket that gives each key a slot of its own, largest buckets first; None if two
    keys of a bucket share a slot, or no displacement of a bucket is left."""
    buckets, places = (hashes >> bucket_shift) & (1 << bucket_bits) - 1, (hashes >> slot_shift) & slots - 1
    moves, used = np.zeros(1 << bucket_bits, np.int64), np.zeros(slots, bool)
    order = np.argsort(buckets, kind="stable")
    starts = np.flatnonzero(np.diff(buckets[order], prepend=-1))
    groups = np.split(places[order], starts[1:])
    for k in sorted(range(len(groups)), key=lambda k: -len(groups[k])):
        own = groups[k]
        move = next((d for d in range(slots) if not used[own + d & slots - 1].any()), None)
        if move is None or len(np.unique(own)) < len(own):
            return None
        used[own + move & slots - 1] = True
        moves[buckets[order[starts[k]]]] = move
    return moves
