"""Steps of a small network made by hand, in which every byte is known."""

from __future__ import annotations

from fairmile.costs.steps import Op, StepEvent, StepTrace, Storage, TensorSpec

# Elements of a sample that each block takes, and of its parameters, all float32.
BLOCKS = {"blocks.0.fc": (25, 1000), "blocks.1.fc": (100, 1000), "head": (100, 500)}


class _Steps:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.events: list[tuple[int, int, int]] = []

    def op(self, name: str, phase: str, module: str, *inputs: TensorSpec) -> None:
        self.ops.append(Op(f"aten.{name}.default", phase, module, inputs, ()))
        self.events += [(StepEvent.BEGIN, len(self.ops) - 1, 0), (StepEvent.END, len(self.ops) - 1, 0)]

    def make(
        self, name: str, phase: str, category: str, module: str, shape: tuple[int, ...], dtype: str, *inputs: TensorSpec
    ) -> TensorSpec:
        """Run an operator that makes a tensor."""
        spec = TensorSpec(shape, _strides(shape), dtype, len(self.storages))
        self.ops.append(Op(f"aten.{name}.default", phase, module, inputs, (spec,)))
        number = len(self.ops) - 1
        self.storages.append(Storage(spec.elements * {"float32": 4, "int64": 8}[dtype], category, module, number))
        self.events += [(StepEvent.BEGIN, number, 0), (StepEvent.ALLOC, spec.storage, 0), (StepEvent.END, number, 0)]
        return spec

    def free(self, *specs: TensorSpec) -> None:
        self.events += [(StepEvent.FREE, spec.storage, 0) for spec in specs]


def step_trace(batch: int = 4, *, steps: int = 2, training: bool = True, sample: int = 100) -> StepTrace:
    """Return a step of two numbered blocks and a head; each block keeps `sample` floats of every sample for backward.

    10,000 bytes of parameters and as many of gradients, 20,000 of the optimizer; 100 bytes of input and 8 of a label
    for each sample.
    """
    made = _Steps()
    parameters = [
        made.make("empty", "build", "parameter", module, (size,), "float32") for module, (_, size) in BLOCKS.items()
    ]
    for step in range(steps):
        made.events.append((StepEvent.STEP, step, 0))
        images = made.make("zeros", "forward", "input", "", (batch, 25), "float32")
        labels = made.make("zeros", "forward", "input", "", (batch,), "int64")
        # The same bytes under another shape are no other input.
        made.ops.append(
            Op(
                "aten.view.default",
                "forward",
                "",
                (images,),
                (TensorSpec((batch * 25,), (1,), "float32", images.storage),),
            )
        )
        last, kept = images, []
        for module in BLOCKS:
            before = last
            last = made.make("relu", "forward", "activation", module, (batch, sample), "float32", before)
            kept.append(last)
            if not training and before is not images:
                made.free(before)
        if training:
            gradients = []
            for module, of, activation in reversed(list(zip(BLOCKS, parameters, kept, strict=True))):
                gradients.append(made.make("relu", "backward", "gradient", module, of.shape, "float32", activation))
                made.free(activation)
            if step == 0:
                for module, of in zip(BLOCKS, parameters, strict=True):
                    for _ in range(2):
                        made.make("zeros", "optimizer", "optimizer", module, of.shape, "float32")
            made.op("relu", "optimizer", "", *gradients)
            made.free(*gradients)
        else:
            made.free(last)
        made.free(images, labels)
    return StepTrace(made.ops, made.storages, made.events, steps, "fp32", training, 2500, {"torch": "2.11.0"})


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    found = [1]
    for length in reversed(shape[1:]):
        found.insert(0, found[0] * length)
    return tuple(found)
