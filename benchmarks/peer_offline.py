"""One offline case of an engine with a Python API, in that engine's own environment.

    PYTHON peer_offline.py transformers MODEL --streams 8 --prompt 64 --new 64

Imports nothing of tinyserve, so that it runs where only the peer is installed. Prints one line of
JSON: {"tokens_per_second": ...}. Engines: transformers and vllm (a folder with float weights;
vllm-bf16 rounds weights and activations to bf16), openvino (what optimum-intel exported;
openvino-f32 where it would compute in bf16), ctranslate2 (what its converter wrote).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    engines = {
        "transformers": transformers,
        "vllm": vllm,
        "vllm-bf16": partial(vllm, dtype="bfloat16"),
        "openvino": openvino,
        "openvino-f32": partial(openvino, INFERENCE_PRECISION_HINT="f32"),
        "ctranslate2": ctranslate2,
    }
    parser.add_argument("engine", choices=engines)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=1, help="0 measures the prompt alone")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(json.dumps({"tokens_per_second": engines[args.engine](args)}))


def prompts(args: argparse.Namespace, new: int) -> list[list[int]]:
    count = max(args.streams, 1)
    return [
        [100 + (s * 7919 + i * 31 + new) % 1000 for i in range(args.prompt)] for s in range(count)
    ]


def speed(args: argparse.Namespace, generate: Any) -> float:
    """Decode speed from the difference of a long and a short run; prompt speed from a short one."""
    generate(prompts(args, 7), 2)  # warm up
    begin = time.perf_counter()
    generate(prompts(args, 1), 1)
    short = time.perf_counter() - begin
    if not args.streams:
        return args.prompt / short
    begin = time.perf_counter()
    generate(prompts(args, 2), args.new)
    return args.streams * (args.new - 1) / (time.perf_counter() - begin - short)


def transformers(args: argparse.Namespace) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    def generate(ids: list[list[int]], new: int) -> None:
        rows = torch.tensor(ids)
        with torch.inference_mode():
            model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                pad_token_id=0,
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
            )

    return speed(args, generate)


def vllm(args: argparse.Namespace, dtype: str = "float32") -> float:
    cores = sorted(os.sched_getaffinity(0))[: args.threads]  # by itself it leaves one unused
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # beside the result
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB; by itself most of the memory
    openmp = Path(sys.prefix, "lib", "libiomp5.so")  # its documentation advises Intel's
    if openmp.exists():
        os.environ.setdefault("LD_PRELOAD", str(openmp))  # of the processes that it starts
    from vllm import LLM, SamplingParams

    llm = LLM(
        args.model,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=max(args.streams, 32),  # one for all cases, since each is compiled anew
        enable_prefix_caching=False,
    )

    def generate(ids: list[list[int]], new: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        llm.generate([{"prompt_token_ids": one} for one in ids], params, use_tqdm=False)

    return speed(args, generate)


def openvino(args: argparse.Namespace, **properties: str) -> float:
    import numpy
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(
        args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads, **properties}
    )

    def generate(ids: list[list[int]], new: int) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.do_sample = False
        config.apply_chat_template = False
        tensors = [ov.Tensor(numpy.array([one], numpy.int64)) for one in ids]
        pipe.generate(tensors, [config] * len(ids))

    return speed(args, generate)


def ctranslate2(args: argparse.Namespace) -> float:
    import ctranslate2 as ct2

    generator = ct2.Generator(args.model, device="cpu", intra_threads=args.threads)
    with open(f"{args.model}/vocabulary.json") as file:
        vocabulary = json.load(file)

    def generate(ids: list[list[int]], new: int) -> None:
        generator.generate_batch(
            [[vocabulary[i] for i in one] for one in ids],
            max_length=new,
            min_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
        )

    return speed(args, generate)


if __name__ == "__main__":
    main()
