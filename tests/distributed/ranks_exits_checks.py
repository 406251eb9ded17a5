"""Two ranks ask sharded models with early exits for what training does not show.

usage: ranks_exits_checks.py    (started by launch.run_ranks)
"""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import probes
from tests.distributed.sharded_exits import WEIGHTS, make, shard, whole
from tests.helpers.decoders import Averager
from tests.helpers.exit_models import BLOCKS, TextModel, text
from tests.helpers.launch import leave


class Inside(TextModel):
    """Gives the logits of every block from its own forward."""

    def forward(self, ids):
        x, logits = self.embed(ids), []
        for block in self.blocks:
            x = block(x)
            logits.append(self.head(x))
        return logits


def check_half_precision():
    """In mixed precision the exits' heads run as if the model's forward had called them."""
    ids, y = text(samples=4, seed=dist.get_rank())
    for scenario in ("blocks", "blocks-head", "blocks-head-freed"):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model, inside = TextModel(), Inside()
        inside.load_state_dict(model.state_dict())
        for one in (model, inside):
            shard(scenario, one, BLOCKS, mp_policy=policy)
        exits = probes.attach_exits(model, BLOCKS, weights=WEIGHTS, sample=ids)
        model(ids)
        loss = exits.loss(y)
        parts = [F.cross_entropy(z.flatten(0, 1).float(), y.flatten()) for z in inside(ids)]
        expected = sum(w * part for w, part in zip(WEIGHTS, parts, strict=True))
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        loss.backward()
        expected.backward()
        for p, q in zip(model.parameters(), inside.parameters(), strict=True):
            torch.testing.assert_close(whole(p.grad), whole(q.grad), rtol=0.05, atol=1e-3)


def check_joint_shards():
    """An own head leaves out the model's: what is sharded with that cannot be used alone."""
    ids, y = text(samples=4)
    for when in ("before", "after"):
        model, layers = make("body-joint")
        settings = {"head": "own", "sample": ids}
        if when == "before":
            exits = probes.attach_exits(model, layers, **settings)
        shard("body-joint", model, layers)
        if when == "before":
            model(ids)
        with pytest.raises(ValueError, match="joins it with 'head'"):
            exits.loss(y) if when == "before" else probes.attach_exits(model, layers, **settings)


def check_records():
    """Each rank records its own samples, as one process would."""
    ids, y = text(samples=8)
    model, layers = make("blocks")
    whole_record, logits = probes.record_exits(model, (ids, y), layers), model(ids)
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    for scenario in ("blocks", "blocks-head-freed"):
        model, layers = make(scenario)
        shard(scenario, model, layers)
        record = probes.record_exits(model, (ids[mine], y[mine]), layers, batch_size=2)
        assert all(isinstance(p, DTensor) for p in model.parameters()), "not left as found"
        torch.testing.assert_close(model(ids[mine]), logits[mine], rtol=1e-12, atol=1e-14)
        for name in ("cross_entropy", "confidence"):
            expected = whole_record[name].values.reshape(*whole_record[name].shape[:-1], 8, -1)
            found = record[name].values.reshape(*expected.shape[:-2], 4, -1)
            np.testing.assert_allclose(found, expected[..., mine, :], rtol=1e-12)


def check_callables():
    """A function of the user's that calls the model's head."""
    ids, y = text(samples=4)
    for scenario in ("blocks", "blocks-freed"):
        losses = []
        for sharded in (False, True):
            model, layers = make(scenario)
            if sharded:
                shard(scenario, model, layers)
            exits = probes.attach_exits(model, layers, head=lambda h, m=model: m.head(2 * h))
            model(ids)
            losses.append(exits.loss(y))
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)


def check_decoding():
    """Decoding calls a model's parts by themselves, and says that it needs them whole."""
    model = Averager().double()
    ids = torch.zeros(1, 3, dtype=torch.long)
    probes.generate(model, ids, 2, layers="layers.0")
    fully_shard(model)
    with pytest.raises(ValueError, match="expected whole parameters"):
        probes.generate(model, ids, 2, layers="layers.0")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for check in (check_half_precision, check_joint_shards, check_records, check_callables):
        check()
    check_decoding()
    dist.barrier()
    dist.destroy_process_group()
    leave()
