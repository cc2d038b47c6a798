#!/usr/bin/env python3
"""Loads an exported checkpoint into a PyTorch DLRM and compares its logits with given ones.

    check_export.py MODEL.safetensors SAMPLES.json [--tolerance 1e-5]

MODEL.safetensors: written by `headlong checkpoint export`. SAMPLES.json: {"dense": [[...], ...],
"sparse": [[row per table], ...], "logits": [...]}. The model below is the original DLRM
(facebookresearch/dlrm, dlrm_s_pytorch.py: its parameter names, create_mlp, interact_features with
arch_interaction_op="dot" and no self-interaction), with the shapes read from the file. Exits 0 when
every logit agrees within the tolerance, relative to max(1, |logit|).
"""

import argparse
import json
import sys

import torch
from safetensors.torch import load_file
from torch import nn


def create_mlp(state, prefix, sigmoid_layer):
    """Linear layers from the state's shapes, each followed by ReLU, or by sigmoid at
    `sigmoid_layer`."""
    layers = nn.ModuleList()
    i = 0
    while f"{prefix}.{2 * i}.weight" in state:
        outputs, inputs = state[f"{prefix}.{2 * i}.weight"].shape
        layers.append(nn.Linear(inputs, outputs, bias=True))
        layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        i += 1
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self, state):
        super().__init__()
        num_tables = sum(name.startswith("emb_l.") for name in state)
        num_top = sum(name.startswith("top_l.") and name.endswith(".weight") for name in state)
        self.emb_l = nn.ModuleList(
            nn.EmbeddingBag(*state[f"emb_l.{t}.weight"].shape, mode="sum")
            for t in range(num_tables)
        )
        self.bot_l = create_mlp(state, "bot_l", sigmoid_layer=-1)
        self.top_l = create_mlp(state, "top_l", sigmoid_layer=num_top - 1)

    def interact_features(self, x, ly):
        (batch_size, d) = x.shape
        t = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
        z = torch.bmm(t, torch.transpose(t, 1, 2))
        (_, ni, nj) = z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x] + [z[:, li, lj]], dim=1)

    def logits(self, dense, sparse):
        x = self.bot_l(dense)
        offsets = torch.arange(dense.shape[0])
        ly = [table(sparse[:, t].contiguous(), offsets) for t, table in enumerate(self.emb_l)]
        return self.top_l[:-1](self.interact_features(x, ly)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("samples")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    state = load_file(arguments.model)
    model = DLRM(state)
    model.load_state_dict(state, strict=True)
    with open(arguments.samples) as file:
        samples = json.load(file)
    with torch.no_grad():
        found = model.logits(torch.tensor(samples["dense"]), torch.tensor(samples["sparse"]))
    expected = torch.tensor(samples["logits"])
    difference = ((found - expected).abs() / expected.abs().clamp(min=1.0)).max().item()
    print(f"{len(expected)} samples, largest difference {difference:.3g}")
    if not difference <= arguments.tolerance:
        print(f"expected {expected.tolist()}\nfound    {found.tolist()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
