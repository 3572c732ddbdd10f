"""Export a trained model for serving: without anything distributed in it, and checked.

    from learner.export import export
    export(model, example_inputs, "model.onnx", format="onnx")

docs/export.md has a serving snippet for each format.
"""

from learner.export.results import METRICS_FILE, MODEL_FILE, export_metrics, export_model
from learner.export.write import FORMATS, Exported, export

__all__ = [
    "FORMATS", "METRICS_FILE", "MODEL_FILE", "Exported", "export", "export_metrics",
    "export_model",
]  # fmt: skip
