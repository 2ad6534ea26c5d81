"""Any model as a folder that every peer reads: `config.json`, f32 safetensors, `tokenizer.json`.

    python -m tinyserve.bench.float_folder --model default --out FOLDER

So that engines which do not read GGUF, or not its quantized formats, run the very weights that this
engine runs: each matrix is written as the values that its quantized form stands for. The tokenizer
goes along, since some of the peers do not start without one.
"""

from __future__ import annotations

from pathlib import Path

from tinyserve.bench.common import add_model, model_section, program_parser, run_program, say
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.export import write_checkpoint

MODULE = "float_folder"


def main(argv: list[str] | None = None) -> None:
    parser = program_parser(MODULE, __doc__, out=(str, "the folder to write"))
    add_model(parser)
    args = parser.parse_args(argv)
    if not args.out:
        parser.error("--out names the folder to write")
    name = model_section(args)["name"]
    write_checkpoint(load_checkpoint(name), Path(args.out), dtype="f32")
    say(f"{name} is in {args.out}")


if __name__ == "__main__":
    run_program(main)
