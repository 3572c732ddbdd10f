"""As Lightning's first example: default_root_dir is the folder it runs in."""

import glob
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, width)

    def training_step(self, batch, _):
        loss = (self.net(batch) - batch).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Pause(lightning.Callback):
    def on_train_epoch_start(self, trainer, _):
        if trainer.current_epoch == 2 and not last:
            print("saved two epochs", flush=True)
            time.sleep(600)  # until the halt ends it


last = sorted(glob.glob("lightning_logs/*/checkpoints/last.ckpt"))
trainer = lightning.Trainer(
    default_root_dir=".",
    max_epochs=4,
    accelerator="cpu",
    devices=1,
    log_every_n_steps=1,
    callbacks=[ModelCheckpoint(save_top_k=-1, save_last="link"), Pause()],
)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(torch.rand(8, 8)), ckpt_path=(last or [None])[-1])
print(f"fitted from {last}: {trainer.current_epoch} epochs, {trainer.global_step} steps")
trainer.save_checkpoint("final.ckpt")
