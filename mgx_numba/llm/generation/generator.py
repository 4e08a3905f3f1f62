"""`Generator`: the tokens of a batch of prompts, one step at a time.

In speculative decoding a proposal of the next tokens is verified: the model runs on all of it in one step, and tokens
are chosen from its logits one by one, as without proposals, for as long as the choice is the proposed token. The text
is therefore the text without proposals, greedy or drawn, up to rounding of the logits of steps with several tokens (on
a CPU mostly none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...errors import OptionError, ParameterError
from ..decoder import CompiledDecoder
from .beams import BeamSearch
from .chooser import Chooser, likeliest
from .engine import DecoderBatch
from .guidance import guide
from .history import History
from .params import GeneratorParams, check_model, stop_tokens
from .prefixes import PrefixCache

if TYPE_CHECKING:
    from ..model import LanguageModel
    from .ahead import StepsAhead


class Generator:
    """Generates tokens after prompts, as onnxruntime-genai's class of this name does.

    The rows of a batch are prompts, or beams of prompts. Prompts of different lengths are padded at either end with the
    model's padding token; padding is no part of the text.
    """

    def __init__(self, model: LanguageModel, params: GeneratorParams, prefix_cache: PrefixCache | None = None) -> None:
        """Make a generator without tokens.

        Args:
            prefix_cache: known beginnings of prompts, for a batch of one.

        Raises:
            OptionError: an option of ``params`` is out of range, or options exclude each other.
            ParameterError: ``model`` is no `Model`, or ``params`` are no `GeneratorParams`.
        """
        if not isinstance(params, GeneratorParams):
            raise ParameterError(f"Generator: params is {type(params).__name__}, expected GeneratorParams")
        check_model(model, "Generator")
        options = params.search
        options.check(model.context_length)
        self._model, self._params, self._options = model, params, options
        self._ends = frozenset(stop_tokens(model, options))
        self._prefixes = prefix_cache if options.batch_size == 1 else None
        self._engine: DecoderBatch | None = None
        self._sequences: list[list[int]] = []
        self._logits: np.ndarray | None = None  # (rows, vocabulary) after the last tokens
        self._ahead: list[tuple[int, np.ndarray]] = []  # proposed tokens that ran, and the logits after each
        self._there: StepsAhead | None = None  # steps whose tokens are chosen on the device
        self._choosers: list[Chooser] = []
        self._beams: list[BeamSearch] = []
        self._finished: list[bool] = []
        self._results: list[list[int]] | None = None
        self._seed = options.seed()
        single = options.batch_size == 1 and options.num_beams == 1
        self._proposer: Proposer | None = None
        if single and params.draft_model is not None:
            draft = params.draft_model
            if draft.vocab_size != model.vocab_size:
                raise OptionError(
                    f"draft model: its vocabulary has {draft.vocab_size} tokens, expected the model's: "
                    f"{model.vocab_size}"
                )
            self._proposer = DraftModel(draft.decoder, draft.shares_buffer)
        elif single and params.speculative.ngram_size:
            self._proposer = PromptLookup(params.speculative.ngram_size)
        forced = single and params.guidance is not None and params.guidance[2]
        self._decoder = model.whole_decoder if self._proposer is not None or forced else model.decoder
        self._proposed = self._accepted = self._steps = 0
        if params.guidance is not None and options.num_beams > 1:
            raise OptionError("guidance with num_beams above 1 is not supported")

    def append_tokens(self, tokens: object) -> None:
        """Append tokens to every sequence and run the model on them.

        Args:
            tokens: integers (tokens) for a batch of one, else (``batch_size``, tokens).

        Raises:
            ParameterError: the tokens do not fit the batch, the vocabulary or ``max_length``; or beams have begun.
        """
        given = _array(tokens.as_numpy() if hasattr(tokens, "as_numpy") else tokens, "append_tokens")
        batch = self._options.batch_size
        if given.dtype.kind not in "iu" or given.ndim not in (1, 2) or given.size == 0 or given.size % batch:
            raise ParameterError(
                f"append_tokens: expected integers of shape ({batch}, tokens), got {given.dtype} of shape {given.shape}"
            )
        given = given.reshape(batch, -1) if given.ndim == 1 else given
        if len(given) != batch:
            raise ParameterError(f"append_tokens: {len(given)} rows of tokens, expected batch_size={batch}")
        if self._beams:
            raise ParameterError("append_tokens: a beam search cannot go on after new tokens; make a new Generator")
        vocabulary = self._model.vocab_size
        if given.min() < 0 or (vocabulary and given.max() >= vocabulary):
            raise ParameterError(
                f"append_tokens: token {int(given.min() if given.min() < 0 else given.max())} is not in the "
                f"vocabulary of {vocabulary} tokens"
            )
        length = self.token_count() + given.shape[1]
        if length > self._options.max_length:
            raise ParameterError(
                f"append_tokens: {length} tokens with the new ones, but max_length is {self._options.max_length}"
            )
        first = not self._sequences
        if first:
            self._begin()
        if self._finished and any(self._finished):
            self._finished = [False] * batch
        texts = [self._unpadded(row) if batch > 1 else row for row in given.tolist()]
        for row, padded, text in zip(range(batch), given.tolist(), texts, strict=True):
            self._sequences[row] += padded
            self._choosers[row].history.extend(text, False)
        self._drop_ahead()
        self._run(first)

    def generate_next_token(self) -> None:
        """Choose the next token of every sequence.

        Raises:
            ParameterError: there is no prompt, or the sequences are complete.
        """
        self._check_begun("generate_next_token")
        if self.is_done():
            raise ParameterError(
                f"generate_next_token: the sequences are complete at {self.token_count()} tokens "
                f"(max_length {self._options.max_length})"
            )
        if self._options.num_beams > 1:
            self._step_beams()
            return
        length = len(self._sequences[0])
        if self._logits is None and self._goes_ahead(length):
            assert self._there is not None
            last = np.array([s[-1:] for s in self._sequences])
            chosen = self._there.next(last, length + 1 < self._options.max_length).tolist()
            self._steps += 1
        else:
            logits = self._current_logits()
            chosen = [
                0 if done else c.choose(row, length)
                for c, row, done in zip(self._choosers, logits, self._finished, strict=True)
            ]
        for row, token in enumerate(chosen):
            if self._finished[row]:
                self._sequences[row].append(self._padding)
                continue
            chooser = self._choosers[row]
            chooser.accept(token)
            self._sequences[row].append(token)
            self._finished[row] = chooser.ended_by(token)
        self._logits = None
        if self._ahead:
            proposed, following = self._ahead.pop(0)
            if proposed == chosen[0]:
                self._accepted += 1
                self._logits = following[None]
            else:
                self._ahead.insert(0, (proposed, following))
                self._drop_ahead()

    def is_done(self) -> bool:
        """Return whether every sequence has ended or is ``max_length`` long."""
        if not self._sequences:
            return False
        if len(self._sequences[0]) >= self._options.max_length:
            return True
        return all(b.done for b in self._beams) if self._beams else all(self._finished)

    def get_sequence(self, index: int) -> np.ndarray:
        """Return the tokens of a sequence (int32), prompt included.

        After a beam search the sequences of each prompt are its ``num_return_sequences`` best.
        """
        if not self._sequences:
            return np.zeros(0, np.int32)
        found = self._sequences
        if self._beams and self.is_done():
            found = self._beam_results()
        if not isinstance(index, (int, np.integer)) or not 0 <= index < len(found):
            raise ParameterError(f"get_sequence: index {index!r}, expected 0 to {len(found) - 1}")
        return np.array(found[index], np.int32)

    def get_next_tokens(self) -> np.ndarray:
        """Return the last token of every row (int32)."""
        return np.array([s[-1] if s else 0 for s in self._sequences], np.int32)

    def token_count(self) -> int:
        """Return the number of tokens of each sequence, padding included."""
        return len(self._sequences[0]) if self._sequences else 0

    def get_logits(self) -> np.ndarray:
        """Return the logits of the next token: (rows, 1, vocabulary), float32, a copy."""
        self._check_begun("get_logits")
        return np.array(self._current_logits(), np.float32)[:, None]

    def set_logits(self, logits: object) -> None:
        """Replace the logits of the next token.

        Args:
            logits: (rows, 1, vocabulary) or (rows, vocabulary).

        Raises:
            ParameterError: there is no prompt, or the logits are of another shape or no numbers.
        """
        self._check_begun("set_logits")
        wanted = self._current_logits().shape
        given = _array(logits, "set_logits")
        if not np.can_cast(given.dtype, np.float64, "same_kind"):
            raise ParameterError(f"set_logits: elements of type {given.dtype}, expected numbers")
        if given.size != wanted[0] * wanted[1]:
            raise ParameterError(f"set_logits: shape {given.shape}, expected {(wanted[0], 1, wanted[1])}")
        self._logits = np.array(given, np.float32).reshape(wanted)

    def rewind_to(self, new_length: int) -> None:
        """Forget the tokens of each sequence beyond the first ``new_length``.

        Raises:
            ParameterError: the length is out of range; or, unless it is 0, there are several rows.
        """
        if not isinstance(new_length, (int, np.integer)) or not 0 <= new_length <= self.token_count():
            raise ParameterError(f"rewind_to({new_length!r}): expected 0 to {self.token_count()} tokens")
        if new_length and len(self._sequences) > 1:
            raise ParameterError(f"rewind_to({new_length}): several sequences can only be rewound to 0")
        self._drop_ahead()
        self._logits = None
        if new_length == 0:
            self._engine, self._sequences, self._beams, self._results, self._there = None, [], [], None, None
            return
        if new_length < self.token_count():
            self._finished = [False]
            del self._sequences[0][new_length:]
            self._choosers[0].rewind(new_length)
        assert self._engine is not None
        # The last token runs again: its logits are needed.
        self._engine.truncate(min(self._engine.columns, new_length - 1))

    def get_speculative_stats(self) -> dict[str, int]:
        """Return the number of steps of the model, and of tokens that were proposed and accepted."""
        return {"steps": self._steps, "proposed_tokens": self._proposed, "accepted_tokens": self._accepted}

    def remember(self) -> None:
        """Keep the keys and values of the text so far in the prefix cache."""
        if self._prefixes is not None and self._engine is not None and self._engine.rows == 1:
            self._drop_ahead()
            self._prefixes.remember(self._engine, self._choosers[0].history.tokens)

    @property
    def model(self) -> LanguageModel:
        """Return the model."""
        return self._model

    @property
    def uses_beams(self) -> bool:
        """Return whether tokens are chosen by beam search."""
        return self._options.num_beams > 1

    @property
    def sequence_count(self) -> int:
        """Return the number of sequences that `get_sequence` has when generation is done."""
        return self._options.batch_size * self._options.num_return_sequences

    def is_full(self) -> bool:
        """Return whether the sequences are ``max_length`` long."""
        return self.token_count() >= self._options.max_length

    def _check_begun(self, name: str) -> None:
        if not self._sequences:
            raise ParameterError(f"{name}: append_tokens must give a prompt before")

    @property
    def _padding(self) -> int:
        known = self._model.pad_token_id
        return int(known) if known is not None else next(iter(self._model.eos_token_ids), 0)

    def _begin(self) -> None:
        options, params = self._options, self._params
        batch = options.batch_size
        self._sequences = [[] for _ in range(batch)]
        self._finished = [False] * batch
        self._choosers = []
        for row in range(batch):
            state = None
            if params.guidance is not None:
                if params.tokenizer is None:
                    from ..tokenizer import Tokenizer

                    params.tokenizer = Tokenizer(self._model)
                kind, text, _ = params.guidance
                state = guide(kind, text, params.tokenizer, self._model.vocab_size, sorted(self._ends))
            self._choosers.append(
                Chooser(options, self._ends, params.logits_processors, (self._seed, row), guide=state)
            )

    def _unpadded(self, tokens: list[int]) -> list[int]:
        """Return tokens without padding at their ends; padding alone is one token."""
        first, last, padding = 0, len(tokens), self._padding
        while last > 1 and tokens[last - 1] == padding:
            last -= 1
        while first < last - 1 and tokens[first] == padding:
            first += 1
        return tokens[first:last]

    def _run(self, first: bool = False) -> None:
        """Run the model on the tokens that it has not seen, and keep the last logits."""
        texts = [chooser.history.tokens for chooser in self._choosers]
        chunk = self._options.chunk_size
        self._steps += 1
        if first and len({len(text) for text in texts}) > 1:
            parts = [self._new_engine() for _ in texts]
            last = [e.prefill(text[None], chunk)[:, -1] for e, text in zip(parts, texts, strict=True)]
            for other in parts[1:]:
                parts[0].join(other)
            self._engine, self._logits = parts[0], np.concatenate(last)
            return
        if self._engine is None:
            self._engine = self._new_engine(len(texts))
            if self._prefixes is not None:
                self._prefixes.restore(self._engine, texts[0])
        known = self._engine.lengths
        following = [text[n:] for text, n in zip(texts, known.tolist(), strict=True)]
        if len({len(f) for f in following}) > 1:
            raise ParameterError(
                "append_tokens: later prompts of a batch must be of one length without padding, and no sequence may "
                "have ended before the others"
            )
        self._logits = self._engine.prefill(np.stack(following), chunk)[:, -1]

    def _new_engine(self, rows: int = 1) -> DecoderBatch:
        return DecoderBatch(self._decoder, rows, self._options.past_present_share_buffer)

    def _current_logits(self) -> np.ndarray:
        """Return the logits of the next token, (rows, vocabulary)."""
        if self._logits is not None:
            return self._logits
        assert self._engine is not None
        if self._there is not None and self._there.pending:
            self._logits, numbers = self._there.logits()
            self._take_back(numbers)
            return self._logits
        # Finished rows run on their padding.
        proposal = [] if any(self._finished) or self._beams else self._proposal()
        if not proposal:  # the model has seen all tokens but the last ones
            self._steps += 1
            self._logits = self._engine.step(np.array([s[-1:] for s in self._sequences]))[:, -1]
            return self._logits
        text = self._choosers[0].history.tokens
        following = np.concatenate([text[self._engine.columns :], np.array(proposal, np.int64)])
        found = self._engine.step(following[None])[0]
        self._steps += 1
        self._proposed += len(proposal)
        self._ahead = list(zip(proposal, found[-len(proposal) :], strict=True))
        self._logits = found[-len(proposal) - 1][None]
        return self._logits

    def _proposal(self) -> list[int]:
        """Return tokens that may come next; none if nothing is proposed."""
        room = self._options.max_length - self.token_count() - 1
        if len(self._choosers) > 1 or room <= 0:
            return []
        chooser = self._choosers[0]
        if self._params.guidance is not None and self._params.guidance[2] and chooser.guide is not None:
            forced = chooser.guide.forced()
            if forced:
                return forced[:room]
        if self._proposer is None:
            return []
        return self._proposer.propose(chooser.history, min(self._params.speculative.max_draft_tokens, room))

    def _goes_ahead(self, length: int) -> bool:
        """Return whether the next tokens of sequences of this length are chosen on the device."""
        first, engine, vocabulary = self._choosers[0], self._engine, self._model.vocab_size
        if engine is None or not engine.on_device or first.changes or self._proposer is not None:
            return False
        from .ahead import StepsAhead, chooses_there  # late: builds programs, whose modules take time to import

        if (
            any(self._finished)
            or length < self._options.min_length
            or not chooses_there(engine, self._options, vocabulary, first.draws)
        ):
            return False
        if self._there is None:
            draw = (lambda: np.array([[c.number()] for c in self._choosers])) if first.draws else None
            self._there = StepsAhead(engine, self._options, vocabulary, draw, self._model.choices)
        return self._there.prepare()

    def _take_back(self, numbers: np.ndarray | None) -> None:
        """Give the numbers of draws that were not used back to the rows."""
        for chooser, number in zip(self._choosers, [] if numbers is None else numbers.ravel().tolist()):
            chooser.take_back(number)

    def _drop_ahead(self) -> None:
        """Take back proposed tokens that were not chosen, and the step that a device is ahead."""
        if self._there is not None:
            self._take_back(self._there.drop())
        if self._ahead:
            assert self._engine is not None
            self._engine.truncate(self._engine.columns - len(self._ahead))
            self._ahead.clear()

    def _step_beams(self) -> None:
        beams, batch = self._options.num_beams, self._options.batch_size
        logits = self._current_logits()
        assert self._engine is not None
        if not self._beams:
            rows = np.repeat(np.arange(batch), beams)
            options = self._options
            self._beams = [BeamSearch(beams, options.length_penalty, options.early_stopping) for _ in range(batch)]
            self._engine.select(rows)
            self._sequences = [list(self._sequences[row]) for row in rows]
            histories = [self._choosers[row].history.copy() for row in rows]
            self._choosers = [Chooser(options, self._ends, self._params.logits_processors) for _ in rows]
            for chooser, history in zip(self._choosers, histories, strict=True):
                chooser.history = history
            logits = logits[rows]
        length = len(self._sequences[0])
        scored = _log_softmax(
            np.stack([c.processed(row, length) for c, row in zip(self._choosers, logits, strict=True)])
        )
        sources, tokens = [], []
        for k, search in enumerate(self._beams):
            here = slice(k * beams, (k + 1) * beams)
            if search.done:
                chosen, following = np.arange(beams), np.full(beams, self._padding)
            else:
                chosen, following = search.step(scored[here], self._sequences[here], self._ends)
            sources += (chosen + k * beams).tolist()
            tokens += following.tolist()
        self._engine.select(sources)
        self._sequences = [[*self._sequences[row], token] for row, token in zip(sources, tokens, strict=True)]
        histories = [self._choosers[row].history for row in sources]
        copied = [h.copy() if sources.count(row) > 1 else h for h, row in zip(histories, sources, strict=True)]
        for chooser, history, token in zip(self._choosers, copied, tokens, strict=True):
            chooser.history = history
            history.append(token, True)
        self._logits = None

    def _beam_results(self) -> list[list[int]]:
        if self._results is None:
            beams = self._options.num_beams
            self._results = []
            for k, search in enumerate(self._beams):
                search.finish(self._sequences[k * beams : (k + 1) * beams])
                self._results += search.results()[: self._options.num_return_sequences]
        return self._results


def _array(values: object, name: str) -> np.ndarray:
    """Return values of a caller as an array.

    Raises:
        ParameterError: they are no array; the message begins with ``name``.
    """
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"{name}: expected an array of numbers: {error}") from error


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the softmax over the last axis, in float64.

    Raises:
        ParameterError: a row has a NaN, or all its tokens are excluded.
    """
    values = logits.astype(np.float64)
    values -= [[logits[row, likeliest(logits[row])]] for row in range(len(logits))]
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


class Proposer(Protocol):
    """Guesses how a sequence goes on."""

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""


class PromptLookup:
    """Proposes what followed the last occurrence of the sequence's last tokens in the sequence itself."""

    def __init__(self, size: int) -> None:
        """Look up at most ``size`` last tokens, then fewer until there is an occurrence."""
        self._size = size

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""
        for size in range(self._size, 0, -1):
            places = history.places(size)
            if len(places):
                return history.tokens[places[-1] : places[-1] + most].tolist()
        return []


class DraftModel:
    """Proposes the likeliest tokens of a smaller model."""

    def __init__(self, decoder: CompiledDecoder, shared: bool) -> None:
        self._engine = DecoderBatch(decoder, shared=shared)
        self._tokens = np.zeros(0, np.int64)  # whose keys and values the engine holds

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""
        tokens = history.tokens
        common = min(len(tokens) - 1, len(self._tokens))
        different = np.flatnonzero(tokens[:common] != self._tokens[:common])
        common = int(different[0]) if len(different) else common
        self._engine.truncate(common)
        found: list[int] = []
        following = tokens[common:]
        while len(found) < most:
            logits = self._engine.step(following[None])
            found.append(int(np.argmax(logits[0, -1])))
            following = np.array(found[-1:])
        self._tokens = np.concatenate([tokens, np.array(found[:-1], np.int64)])
        return found
