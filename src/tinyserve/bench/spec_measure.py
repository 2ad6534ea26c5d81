"""Measuring one model with drafts and without: the engine room of `spec_bench`.

Each measurement has an engine core, a KV-cache's bookkeeping and a proposer of its own over the one
runner that was loaded. Its prompts run in batches of as many as there are streams: all of them
without drafts and all of them with, in rounds, or the two side by side (`spec_pairs`).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinyserve.bench import spec_pairs
from tinyserve.bench.common import model_section
from tinyserve.bench.offline_cases import configuration
from tinyserve.bench.spec_runs import Case, Run, accepted_share, had_drafts, switched_off
from tinyserve.bench.spec_texts import conversation, random_ids, text
from tinyserve.bench.stranger import write_stranger
from tinyserve.config import SpecConfig, TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.core import EngineCore
from tinyserve.engine.draft_model import DraftModelProposer
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.engine.speculation import load_draft_model, make_draw, make_proposer
from tinyserve.kv.manager import KVManager
from tinyserve.spec.controller import AdaptiveController
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.oracle import OracleProposer, RandomProposer
from tinyserve.spec.proposer import Proposer

PROPOSERS = ("ngram", "suffix", "draft_model", "random", "oracle")
RANDOM_PROMPT = 96  # tokens
STRANGER = "random"  # --draft-model: random weights with the model's vocabulary


class Bench:
    """One loaded model, and measurements of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self._drafting: DraftModelProposer | None = None
        with tempfile.TemporaryDirectory() as folder:
            draft_model = args.draft_model
            if draft_model == STRANGER:
                target = model_section(args)["name"]
                draft_model = write_stranger(target, args.seed, Path(folder))
            self.engine: Engine = build_engine(self._config(draft_model))
            if draft_model:
                runner: Any = self.engine.core.runner
                tokenizer = self.engine.intake.tokenizer
                self._drafting = load_draft_model(self.engine.config, tokenizer, runner)

    def measure(self, case: Case) -> dict[str, Any]:
        """The numbers of one case, as the options ask: in pairs or in rounds."""
        return self._in_pairs(case) if self.args.pairs else self._in_rounds(case)

    def _in_pairs(self, case: Case) -> dict[str, Any]:
        """The two engines side by side; see `spec_pairs`."""
        if case.proposer == "oracle":
            raise SystemExit("spec_bench: the oracle must have seen a whole round: no --pairs")
        first, second = spec_pairs.halves(self.engine.config.cache)
        plain, drafted = self._core(None, first), self._core(self._drafter(case, None), second)
        batches = (
            list(self._requests(case, case.streams * number, ends=()))
            for number in itertools.count()
        )
        try:
            found = spec_pairs.measure(plain, drafted, batches, self.args.pairs)
        except ValueError as error:
            raise SystemExit(f"spec_bench: --new {self.args.new}: {error}") from None
        stats, side = drafted.stats(), found.drafted
        return {
            **asdict(case),
            **spec_pairs.summary(found.pairs),
            "acceptance": accepted_share(stats.num_accepted_tokens, stats.num_draft_tokens),
            "tokens_per_step": side.total.tokens / case.streams / side.num_steps,
            "off_after_s": switched_off(side.drafting),
            "is_identical": found.is_identical,
        }

    def _in_rounds(self, case: Case) -> dict[str, Any]:
        """All prompts plain and all with drafts; the rounds take turns in which comes first."""
        plain: list[Run] = []
        drafted: list[Run] = []
        for number in range(self.args.repeat):
            if number % 2 == 0:
                plain.append(self._run(case, None))
                drafted.append(self._run(case, self._drafter(case, plain[0])))
            else:
                drafted.append(self._run(case, self._drafter(case, plain[0])))
                plain.append(self._run(case, None))
        ratios = [b.rate / a.rate for a, b in zip(plain, drafted, strict=True)]
        last = drafted[-1]
        return {
            **asdict(case),
            "speedup": statistics.median(ratios),
            "speedups": ratios,
            "plain_tok_s": statistics.median(run.rate for run in plain),
            "tok_s": statistics.median(run.rate for run in drafted),
            "acceptance": accepted_share(last.num_accepted, last.num_drafts),
            "tokens_per_step": last.num_tokens / case.streams / last.num_steps,
            "off_after_s": last.off_after,
            "is_identical": all(run.outputs == plain[0].outputs for run in (*plain, *drafted)),
        }

    def _run(self, case: Case, drafter: Drafter | None) -> Run:
        core = self._core(drafter, KVManager.from_config(self.engine.config.cache))
        outputs: list[tuple[int, ...]] = []
        num_tokens, num_steps, seconds = 0, 0, 0.0
        steps: list[tuple[float, bool]] = []
        for first in range(0, self._count(case), case.streams):
            said: dict[str, list[int]] = {}
            for request in self._requests(case, first, self._ends(case)):
                core.add_request(request)
                said[request.request_id] = []
            while core.has_work() and not all(said.values()):
                _step(core, said)
                steps.append((seconds, had_drafts(core)))
            tokens_before, steps_before = sum(map(len, said.values())), len(steps)
            begin = time.perf_counter()
            while core.has_work():
                _step(core, said)
                steps.append((seconds + time.perf_counter() - begin, had_drafts(core)))
            seconds += time.perf_counter() - begin
            num_tokens += sum(map(len, said.values())) - tokens_before
            num_steps += len(steps) - steps_before
            outputs += [tuple(tokens) for tokens in said.values()]
        stats = core.stats()
        return Run(
            tuple(outputs),
            num_tokens,
            seconds,
            num_steps,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
            switched_off(steps) if drafter else None,
        )

    def _count(self, case: Case) -> int:
        """How many requests a measurement has: whole batches of `streams`."""
        num_prompts: int = self.args.prompts
        return max(1, num_prompts // case.streams) * case.streams

    def _core(self, drafter: Drafter | None, kv: KVManager) -> EngineCore:
        """An engine over the one runner, with these blocks of its pool."""
        return EngineCore(
            self.engine.core.runner,
            kv,
            self.engine.config.scheduler,
            vocab_size=self.engine.intake.limits.vocab_size,
            drafter=drafter,
            draw=make_draw(SpecConfig(enabled=True, verification=self.args.verification)),
        )

    def _requests(self, case: Case, first: int, ends: tuple[int, ...]) -> Iterator[EngineRequest]:
        params = SamplingParams(
            temperature=case.temperature,
            max_tokens=self.args.new,
            stop_token_ids=ends,
            seed=self.args.seed,
        )
        for number in range(first, first + case.streams):
            yield EngineRequest(
                request_id=str(number),
                prompt_token_ids=self._prompt(case.workload, number),
                params=params,
                arrival=float(number),
            )

    def _ends(self, case: Case) -> tuple[int, ...]:
        """The token that ends a text; none for random prompts or weights, whose texts never end."""
        eos = self.engine.intake.tokenizer.eos_token_id
        is_text = case.workload != "random" and self.args.model is not None
        return (eos,) if is_text and eos is not None else ()

    def _prompt(self, workload: str, number: int) -> Sequence[int]:
        intake = self.engine.intake
        if workload == "random":
            size = min(intake.limits.vocab_size, intake.tokenizer.vocab_size)
            return random_ids(number, self.args.seed, RANDOM_PROMPT, size)
        if workload == "chat" and self.args.model is not None:
            return intake.encode_chat(conversation(number))
        if workload == "chat":
            return intake.encode("\n".join(turn["content"] for turn in conversation(number)))
        return intake.encode(text(workload, number))

    def _drafter(self, case: Case, plain: Run | None) -> Drafter:
        return Drafter(self._proposer(case, plain), AdaptiveController() if case.control else None)

    def _proposer(self, case: Case, plain: Run | None) -> Proposer[Any]:
        size = self.engine.intake.limits.vocab_size
        if case.proposer == "random":
            return RandomProposer(size, case.k, seed=self.args.seed)
        if case.proposer == "oracle":
            assert plain is not None
            prompts = [self._prompt(case.workload, number) for number in range(self._count(case))]
            futures = [[*a, *b] for a, b in zip(prompts, plain.outputs, strict=True)]
            return OracleProposer(futures, size, case.k)
        if case.proposer == "draft_model":
            loaded = self._drafting
            if loaded is None:
                raise SystemExit("spec_bench: the proposer draft_model needs --draft-model")
            cache = self.engine.config.cache
            assert cache.num_blocks is not None
            kv = KVManager(cache.num_blocks, cache.block_size)
            wants_probs = self.args.verification == "rejection"
            return DraftModelProposer(
                loaded.runner, kv, loaded.limits, case.k, wants_probs=wants_probs
            )
        spec = SpecConfig(enabled=True, method=case.proposer, num_speculative_tokens=case.k)
        return make_proposer(spec)

    def _config(self, draft_model: str | None) -> TinyServeConfig:
        args = self.args
        spec = {"draft_model": draft_model} if draft_model else {}
        return configuration(
            model_section(args),
            max(args.streams) * (2 if args.pairs else 1),
            512 + args.new,
            spec={**spec, "enabled": False, "verification": args.verification},
        )


def _step(core: EngineCore, said: dict[str, list[int]]) -> None:
    """One step; its tokens join what each request has said."""
    for output in core.step():
        said[output.request_id] += output.new_token_ids
