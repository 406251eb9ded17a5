"""A probe inside Lightning's `Trainer`; needs lightning."""

from typing import Any

from probes._branches.probe import Probe
from probes._exit_training.losses import Exits
from probes._model.add_to_optimizer import add_to_optimizer
from resonance_toolkit import missing_extra

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing_extra("probes.lightning", "lightning") from error


class ProbeCallback(Callback):
    """Trains a probe's branches with a `LightningModule`, and saves them in its checkpoints.

    Pass the module the probe's loss, a plain function, and not the probe, which would become a part
    of the module. The weights in its checkpoints are then those of the model alone.

        class Classifier(LightningModule):
            def __init__(self, model, auxiliary, join=torch.add):
                super().__init__()
                self.model = model
                self.auxiliary = auxiliary
                self.join = join

            def training_step(self, batch, index):
                x, y = batch
                main = cross_entropy(self.model(x), y)
                return self.join(main, self.auxiliary(y))

            def validation_step(self, batch, index): ...  # branches do not run here
            def configure_optimizers(self): ...  # as usual: the branches are added

        probe = probes.attach(model, "blocks.*")
        trainer = Trainer(callbacks=[ProbeCallback(probe)])
        trainer.fit(Classifier(model, probe.loss), loader)

    To record a trace of the gradients as well:

        trace = gradients.Trace(model, every=10)
        trainer = Trainer(callbacks=[ProbeCallback(probe), TraceCallback(trace)])
        trainer.fit(Classifier(model, probe.loss, trace.join), loader)

    A training that resumes (`fit(..., ckpt_path=...)`) continues with the branches of its
    checkpoint. If it stopped within an epoch, it equals an uninterrupted training only if the
    loader saves its position in the checkpoint (`state_dict` and `load_state_dict`, as Lightning
    asks); a plain DataLoader starts the epoch again.

    If a probe is an attribute of the module, it is one of its parts and needs no callback: its
    branches are in `parameters()` and in the module's own weights.

    Args:
        probe: A probe attached to the model that is trained; or exits, whose loss is the whole
            objective. Its parameters join the first group of the first optimizer, unless the
            optimizers have them already.
    """

    def __init__(self, probe: Probe | Exits) -> None:
        if not isinstance(probe, Probe | Exits):
            raise TypeError(
                "`probe`: expected what probes.attach or attach_exits returned, got "
                f"{type(probe).__name__}"
            )
        self.probe = probe

    def __repr__(self) -> str:
        layers = ", ".join(self.probe.layers)
        return f"ProbeCallback({layers}; step={self.probe.step})"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the branches into the optimizer, whose saved state is loaded after this."""
        # Lightning has a stand-in without groups for an optimizer that is not there.
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        if not groups:
            raise ValueError(
                "`configure_optimizers`: expected an optimizer to put the branches into, got none"
            )

        self.probe.to(pl_module.device)
        present = {id(parameter) for group in groups for parameter in group["params"]}
        if any(id(parameter) not in present for parameter in self.probe.parameters()):
            add_to_optimizer(trainer.optimizers[0], self.probe)

    def state_dict(self) -> dict[str, Any]:
        """Return the branches and the step, which Lightning puts into its checkpoints."""
        return self.probe.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the branches of a checkpoint."""
        self.probe.load_state_dict(state_dict)
