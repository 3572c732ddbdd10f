"""One trial of the search: replace `run` by what you want to measure."""

from search.tasks import BaseTask, Order


class Trial(BaseTask):
    """The arguments are the parameters of the space, by name."""

    def __init__(self, lr: float, layers: int, optimizer: str, momentum: float = 0.0) -> None:
        self.lr, self.layers, self.optimizer, self.momentum = lr, layers, optimizer, momentum

    def run(self) -> dict[str, float]:
        """Return the metrics; a made-up valley stands for a training here."""
        loss = 1.0
        for step in range(10):
            loss = abs(self.lr - 0.03) + abs(self.layers - 4) / 10 + 1 / (step + 2)
            loss += 0.1 * (self.optimizer == "sgd") * (1 - self.momentum)
            if self.report(step, loss=loss) is not Order.CONTINUE:
                break
        return {"loss": loss}
