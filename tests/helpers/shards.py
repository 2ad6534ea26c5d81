"""A model's one file of tensors, cut into several with an index, as the hub has larger models."""

from __future__ import annotations

import json
from pathlib import Path

from tinyserve.models.export import write_safetensors
from tinyserve.models.safetensors_loader import SafetensorsFile


def cut_into_shards(folder: Path, count: int) -> None:
    """Put `count` files and their index in the place of model.safetensors."""
    whole = folder / "model.safetensors"
    tensors = {name: tensor.read() for name, tensor in SafetensorsFile(whole).tensors.items()}
    homes: dict[str, str] = {}
    for index in range(count):
        names = list(tensors)[index::count]
        file = f"model-{index + 1:05}-of-{count:05}.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in names})
        homes |= dict.fromkeys(names, file)
    whole.unlink()
    about = {"metadata": {}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(about))
