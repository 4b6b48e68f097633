"""What the run records of itself beside the loss: how evenly the router spreads the tokens."""

import torch

#: Module path of a router to the tokens that each of its experts got in the latest forward pass.
tokens_per_expert: dict[str, list[int]] = {}


def attach(chunks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Hook the routers of every model chunk; Bridge calls this before it wraps the model for DDP."""
    for chunk in chunks:
        for path, module in chunk.named_modules():
            if path.endswith(".mlp.router"):
                module.register_forward_hook(_count_tokens(path))
    return chunks


def _count_tokens(path: str):
    def hook(_module, _inputs, output):
        _probabilities, routing_map = output
        tokens_per_expert[path] = routing_map.sum(dim=0).tolist()

    return hook
