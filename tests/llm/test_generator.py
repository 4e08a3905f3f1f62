"""`Generator` against loops over a NumPy decoder that sees all tokens at once, without caches."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mgx_numba.errors import MgxError, OptionError, ParameterError
from mgx_numba.llm import Generator, GeneratorParams, Model, PrefixCache, Tokenizer
from tests.llm.tiny import END, LONGEST, VOCABULARY

FORMS = [("plain", False), ("grouped", False), ("grouped", True)]
PROMPTS = [[5, 6, 7, 8, 9], [11, 4], [22, 23, 24, 25, 26, 27, 28]]


def started(model, prompt, shared=False, prefix_cache=None, prepare=lambda params: None, **options):
    params = GeneratorParams(model)
    params.set_search_options(max_length=40, past_present_share_buffer=shared, **options)
    prepare(params)
    generator = Generator(model, params, prefix_cache)
    generator.append_tokens(prompt)
    return generator


def finished(generator):
    while not generator.is_done():
        generator.generate_next_token()
    return generator


def generated(*args, **options):
    return finished(started(*args, **options)).get_sequence(0).tolist()


def greedy(weights, prompt, length=40, change=lambda tokens, logits: logits):
    tokens = list(prompt)
    while len(tokens) < length and (len(tokens) == len(prompt) or tokens[-1] != END):
        tokens.append(int(np.argmax(change(tokens, weights.logits(tokens)[-1].copy()))))
    return tokens


@pytest.mark.parametrize("kind,shared", FORMS)
@pytest.mark.parametrize("chunk", [0, 2])
def test_greedy_is_the_numpy_loop(compiled, kind, shared, chunk):
    weights, model = compiled[kind]
    for prompt in PROMPTS:
        assert generated(model, prompt, shared, chunk_size=chunk) == greedy(weights, prompt)


@pytest.mark.parametrize("kind,shared", FORMS)
@pytest.mark.parametrize("left", [False, True])
def test_prompts_of_a_batch_with_padding_at_either_end_are_as_alone(compiled, kind, shared, left):
    weights, model = compiled[kind]
    longest = max(map(len, PROMPTS))
    pads = [[0] * (longest - len(p)) for p in PROMPTS]
    rows = [pad + p if left else p + pad for p, pad in zip(PROMPTS, pads, strict=True)]
    generator = finished(started(model, np.array(rows, np.int32), shared, batch_size=3, ignore_eos=True))
    for k, prompt in enumerate(PROMPTS):
        wanted, tokens = [], list(prompt)
        for _ in range(40 - longest):
            tokens.append(int(np.argmax(weights.logits(tokens)[-1])))
            wanted.append(tokens[-1])
        assert generator.get_sequence(k).tolist() == rows[k] + wanted


def test_a_row_that_has_ended_is_padded_while_others_go_on(compiled):
    weights, model = compiled["plain"]
    ends = {p: greedy(weights, [p, 9]) for p in range(4, VOCABULARY)}
    short = next(p for p, tokens in ends.items() if len(tokens) < 12)
    long = next(p for p, tokens in ends.items() if len(tokens) > 15)
    generator = finished(started(model, [[short, 9], [long, 9]], batch_size=2))
    assert generator.get_sequence(1).tolist() == ends[long]
    found = generator.get_sequence(0).tolist()
    assert found == ends[short] + [0] * (len(found) - len(ends[short]))


def admitted(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Return tokens, likeliest first, and probabilities, by sorting all."""
    order = np.argsort(-logits, kind="stable")
    p = np.exp((logits[order] - logits.max()) / temperature)
    if top_k:
        order, p = order[:top_k], p[:top_k]
    p = p / p.sum()
    keep = np.cumsum(p) - p < top_p
    keep &= p >= min_p * p[0]
    return order[keep], p[keep] / p[keep].sum()


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 0},
        {"top_k": 7, "temperature": 0.7},
        {"top_k": 0, "top_p": 0.6},
        {"top_k": 20, "top_p": 0.8, "temperature": 1.5},
        {"top_k": 0, "min_p": 0.2, "temperature": 2.0},
    ],
)
def test_sampling_with_a_seed_is_the_numpy_loop(compiled, options):
    weights, model = compiled["grouped"]
    random = np.random.default_rng((17, 0))
    tokens = list(PROMPTS[0])
    while len(tokens) < 40 and tokens[-1] != END:
        known, p = admitted(weights.logits(tokens)[-1].astype(np.float32).astype(float), **options)
        if options == {"top_k": 0} or "min_p" in options:  # drawn in the vocabulary's order
            order = np.argsort(known)
            known, p = known[order], p[order]
        tokens.append(int(known[min(np.searchsorted(np.cumsum(p), random.random(), "right"), len(p) - 1)]))
    assert generated(model, PROMPTS[0], do_sample=True, random_seed=17, **options) == tokens


def test_rows_of_a_batch_draw_independently(compiled):
    _, model = compiled["grouped"]
    options = {"do_sample": True, "random_seed": 5, "top_k": 0, "ignore_eos": True}
    both = finished(started(model, [PROMPTS[0], PROMPTS[0]], batch_size=2, **options))
    assert both.get_sequence(0).tolist() == generated(model, PROMPTS[0], **options)
    assert both.get_sequence(0).tolist() != both.get_sequence(1).tolist()


def test_penalties_and_forbidden_repetitions_are_the_numpy_loop(compiled):
    weights, model = compiled["plain"]
    prompt = [5, 6, 5, 6, 7]

    def changed(tokens, logits):
        for t in set(tokens):
            logits[t] = logits[t] / 1.3 if logits[t] > 0 else logits[t] * 1.3
        for t in set(tokens[len(prompt) :]):
            logits[t] -= 0.4 + 0.2 * tokens[len(prompt) :].count(t)
        for t in range(VOCABULARY):
            pairs = list(itertools.pairwise(tokens))
            if (tokens[-1], t) in pairs:
                logits[t] = -np.inf
        if len(tokens) < 30:
            logits[END] = -np.inf
        return logits

    options = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    options |= {"no_repeat_ngram_size": 2, "min_length": 30}
    assert generated(model, prompt, **options) == greedy(weights, prompt, change=changed)


def test_processors_of_the_user_change_logits(compiled):
    weights, model = compiled["plain"]

    def even(tokens, logits):
        logits[1::2] = -np.inf
        return logits

    def prepare(params):
        params.logits_processors.append(even)

    wanted = greedy(weights, PROMPTS[0], change=even)
    assert generated(model, PROMPTS[0], prepare=prepare) == wanted
    assert all(t % 2 == 0 for t in wanted[len(PROMPTS[0]) :])
    with pytest.raises(OptionError, match=r"returned shape \(1,\), expected \(50,\)"):
        generated(model, PROMPTS[0], prepare=lambda p: p.logits_processors.append(lambda t, x: x[:1]))


def beams(weights, prompt, count, length, penalty, early):
    """Return ended sequences, best first: a plain beam search over lists."""
    living, ended = [(0.0, list(prompt))], []
    while len(living[0][1]) < length:
        options = []
        for score, tokens in living:
            x = weights.logits(tokens)[-1]
            x = x - x.max()
            x = x - np.log(np.exp(x).sum())
            options += [(score + x[t], tokens, t) for t in range(VOCABULARY)]
        options.sort(key=lambda o: -o[0])
        size = len(living[0][1])
        for score, tokens, t in options[:count]:
            if t == END:
                ended.append((score / size**penalty, tokens))
        ended = sorted(ended, key=lambda e: -e[0])[:count]
        living = [(s, [*tokens, t]) for s, tokens, t in options[: 2 * count] if t != END][:count]
        if len(ended) == count and (early or ended[-1][0] >= options[0][0] / size**penalty):
            return [tokens for _, tokens in ended]
    ended += [(s / len(tokens) ** penalty, tokens) for s, tokens in living]
    return [tokens for _, tokens in sorted(ended, key=lambda e: -e[0])[:count]]


@pytest.mark.parametrize("kind,shared", FORMS)
@pytest.mark.parametrize("early,penalty", [(True, 1.0), (False, 0.5), (False, 2.0)])
def test_beams_are_the_numpy_search(compiled, kind, shared, early, penalty):
    weights, model = compiled[kind]
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": penalty, "early_stopping": early}
    generator = started(model, [PROMPTS[0], PROMPTS[0][::-1]], shared, batch_size=2, **options)
    finished(generator)
    for row, prompt in enumerate((PROMPTS[0], PROMPTS[0][::-1])):
        wanted = beams(weights, prompt, 4, 40, penalty, early)
        found = [generator.get_sequence(3 * row + k).tolist() for k in range(3)]
        assert found == wanted[:3]


def test_rewinding_and_appending_go_on_as_if_nothing_had_been(compiled):
    for (kind, shared), chosen in itertools.product(FORMS, (7, 5, 1)):
        weights, model = compiled[kind]
        generator = started(model, PROMPTS[0], shared, ignore_eos=True)
        for _ in range(6):
            generator.generate_next_token()
        text = generator.get_sequence(0).tolist()
        generator.rewind_to(chosen)
        generator.generate_next_token()
        assert generator.get_sequence(0).tolist() == greedy(weights, text[:chosen], chosen + 1)
        generator.append_tokens([30, 31])
        before = generator.get_sequence(0).tolist()
        generator.generate_next_token()
        assert generator.get_sequence(0).tolist() == greedy(weights, before, len(before) + 1)
        generator.rewind_to(0)
        generator.append_tokens(PROMPTS[2])
        generator.generate_next_token()
        assert generator.get_sequence(0).tolist() == greedy(weights, PROMPTS[2], len(PROMPTS[2]) + 1)


@pytest.mark.parametrize("kind,shared", FORMS)
@pytest.mark.parametrize("draw", [False, True])
def test_speculation_does_not_change_the_text(compiled, kind, shared, draw):
    _, model = compiled[kind]
    options = {"do_sample": draw, "random_seed": 3, "top_k": 3, "temperature": 0.2, "ignore_eos": True}
    prompt = [5, 6, 7, 5, 6]
    plain = generated(model, prompt, shared, **options)

    def look_up(params):
        params.set_speculative_options(ngram_size=2, max_draft_tokens=5)

    def draft(params):
        params.draft_model = model

    for prepare in (look_up, draft):
        generator = finished(started(model, prompt, shared, prepare=prepare, **options))
        assert generator.get_sequence(0).tolist() == plain
        stats = generator.get_speculative_stats()
        assert 0 < stats["accepted_tokens"] <= stats["proposed_tokens"]
        assert stats["steps"] + stats["accepted_tokens"] >= len(plain) - len(prompt)
    assert stats["steps"] < len(plain) - len(prompt)


def test_known_beginnings_of_prompts_are_reused(compiled):
    for kind, shared in FORMS:
        weights, model = compiled[kind]
        known = PrefixCache(least=2)
        first = finished(started(model, PROMPTS[2], shared, known))
        first.remember()
        for prompt in (PROMPTS[2] + [9, 9], [*PROMPTS[2][:4], 30, 31, 32], PROMPTS[2]):
            assert generated(model, prompt, shared, known) == greedy(weights, prompt)
        assert (known.hits, known.reused) == (3, 7 + 4 + 6)


def test_logits_can_be_read_and_replaced(compiled):
    weights, model = compiled["plain"]
    generator = started(model, PROMPTS[0])
    logits = generator.get_logits()
    assert logits.shape == (1, 1, VOCABULARY)
    np.testing.assert_allclose(logits[0, 0], weights.logits(PROMPTS[0])[-1], rtol=1e-4, atol=1e-4)
    logits[:] = 0
    logits[0, 0, 44] = 1
    generator.set_logits(logits)
    generator.generate_next_token()
    assert generator.get_next_tokens().tolist() == [44]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"top_k": -1}, r"top_k=-1: expected a value from 0 on"),
        ({"top_p": 1.5}, r"top_p=1\.5: expected a value from 0 to 1"),
        ({"num_beams": 40}, r"num_beams=40: expected a value from 1 to 32"),
        ({"max_length": LONGEST + 1}, r"max_length=97: expected a value from 1 to 96"),
        ({"num_return_sequences": 2}, r"num_return_sequences=2: expected a value from 1 to 1"),
        ({"tempreature": 1}, r"'tempreature' is unknown; did you mean temperature\?"),
        ({"top_k": "five"}, r"top_k='five': expected an integer"),
        ({"past_present_share_buffer": True}, r"this model has growing caches"),
    ],
)
def test_wrong_options_are_named(compiled, options, message):
    _, model = compiled["plain"]
    with pytest.raises(OptionError, match=message):
        params = GeneratorParams(model)
        params.set_search_options(**options)
        Generator(model, params).append_tokens([5])


@pytest.mark.parametrize(
    "tokens,message",
    [
        ([], r"expected integers of shape \(1, tokens\)"),
        ([1.5], r"got float64"),
        ([5, VOCABULARY], r"token 50 is not in the vocabulary of 50 tokens"),
        ([5] * 41, r"41 tokens with the new ones, but max_length is 40"),
        ([[5, 6], [7]], r"append_tokens: expected an array of numbers"),
        ("text", r"got <U4"),
    ],
)
def test_wrong_tokens_are_named(compiled, tokens, message):
    with pytest.raises(ParameterError, match=message):
        started(compiled["plain"][1], tokens)


def test_a_complete_sequence_refuses_more_tokens(compiled):
    generator = finished(started(compiled["plain"][1], PROMPTS[0], ignore_eos=True))
    with pytest.raises(ParameterError, match=r"complete at 40 tokens"):
        generator.generate_next_token()
    with pytest.raises(MgxError, match=r"rewind_to\(41\)"):
        generator.rewind_to(41)


def test_a_draft_model_of_another_vocabulary_is_refused(compiled):
    class Other:
        vocab_size = 7

    with pytest.raises(OptionError, match=r"draft model: its vocabulary has 7 tokens, expected the model's: 50"):
        started(compiled["plain"][1], PROMPTS[0], prepare=lambda p: setattr(p, "draft_model", Other()))


@pytest.mark.parametrize(
    "act,message",
    [
        (lambda g: g.set_logits(np.zeros((1, 1, VOCABULARY))), r"set_logits: append_tokens must give a prompt"),
        (lambda g: g.get_logits(), r"get_logits: append_tokens must give a prompt"),
        (lambda g: g.generate_next_token(), r"generate_next_token: append_tokens must give a prompt"),
        (lambda g: g.rewind_to("x"), r"rewind_to\('x'\): expected 0 to 0 tokens"),
        (lambda g: (g.append_tokens([5]), g.set_logits("x")), r"set_logits: .*expected"),
        (lambda g: (g.append_tokens([5]), g.set_logits([[["a"]]])), r"set_logits: elements of type <U1"),
        (lambda g: (g.append_tokens([5]), g.get_sequence("x")), r"get_sequence: index 'x', expected 0 to 0"),
        (lambda g: (g.append_tokens([5]), g.get_sequence(-1)), r"get_sequence: index -1, expected 0 to 0"),
        (lambda g: Generator(g.model, {}), r"params is dict, expected GeneratorParams"),
        (lambda g: Generator("x", GeneratorParams(g.model)), r"Generator: model is str, expected a Model"),
        (lambda g: GeneratorParams(None), r"GeneratorParams: model is NoneType, expected a Model"),
        (lambda g: Model(5), r"Model: int, expected a path or a Config"),
        (lambda g: Tokenizer(5), r"Tokenizer: model is int, expected a Model"),
    ],
)
def test_calls_out_of_order_and_other_types_are_named(compiled, act, message):
    model = compiled["plain"][1]
    with pytest.raises(ParameterError, match=message):
        act(Generator(model, GeneratorParams(model)))


def test_new_prompts_after_one_sequence_of_a_batch_has_ended_are_refused(compiled):
    model = compiled["plain"][1]
    generator = started(model, [[5, 6], [7, 8]], batch_size=2)
    logits = np.zeros((2, 1, VOCABULARY))
    logits[0, 0, END] = logits[1, 0, 9] = 9
    generator.set_logits(logits)
    generator.generate_next_token()
    generator.generate_next_token()
    with pytest.raises(ParameterError, match="no sequence may have ended before the others"):
        generator.append_tokens([[5, 6], [7, 8]])


def test_generators_of_one_model_in_threads_do_not_disturb_each_other(compiled):
    _, model = compiled["grouped"]
    wanted = [generated(model, [5 + k, 6]) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda k: generated(model, [5 + k, 6]), range(4))) == wanted
