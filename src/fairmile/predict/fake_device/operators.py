"""Answers for every operator on the device without memory, and notes it with every storage's life."""

from __future__ import annotations

import bisect
import math
import sys
import weakref
from typing import Any

import torch

from fairmile.costs.steps import StepEvent
from fairmile.predict.fake_device import kernels
from fairmile.predict.fake_device.assumptions import Assumptions
from fairmile.predict.fake_device.signatures import (
    LIST,
    NEW,
    SAME,
    VALUE,
    VIEW,
    Signature,
    describe_argument,
    describe_outputs,
    launches,
    numbers_as_tensors,
    typed_values,
)
from fairmile.predict.fake_device.values import Values, flattened, plain_tensors

aten = torch.ops.aten

_torch: Any = torch  # for what its types do not tell
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_EMPTY: Any = getattr(getattr(torch._C, "_acc", None), "create_empty_tensor", None)
_STRIDED = aten.as_strided.default
_NODE = torch._C._current_autograd_node
_GENERATOR = torch._C.Generator
_BEGIN, _END, _ALLOC, _FREE, _STEP = (int(kind) for kind in StepEvent)


class Unpredictable(RuntimeError):
    """How the model goes on depends on the values of its tensors, which are not there."""


class Mixed(BaseException):
    """A tensor of the host is used together with those of the device; user code is not to catch this."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__("a host tensor is used together with device tensors")
        self.tensor = tensor


class _Life(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("index", "key")
    index: int
    key: int


class OperatorRecorder:
    """Operators on the device give tensors without data, and are noted; those of the host run as ever.

    It answers as the device's kernels, below everything that torch does for any device: so autograd, composite
    operators and optimizers take the ways that they take on CUDA.
    """

    def __init__(self) -> None:
        self.signatures: dict[Any, Signature] = {}
        self.ops: list[tuple[Signature, str, str, tuple[int, ...], tuple[int, ...]]] = []
        self.sizes: list[int] = []
        self.made: list[tuple[int, str, str]] = []  # operator, part of the step, module
        self.events: list[tuple[int, int, int]] = []
        self.notes: list[str] = []
        self.stopped = ""  # why a step was not followed to its end
        self.phase = "build"
        self.modules: list[str] = []
        self.entered = False
        self._first = 0
        self.dormant: dict[int, int] | None = {}
        self.claimed: dict[int, str] = {}
        self.kept: set[int] = set()
        self._lives: dict[int, _Life] = {}
        self._hollow: set[int] = set()  # storages that are there without memory
        self._making = -1
        self._mixed = False
        self._empty: tuple[int, ...] | None = None
        self._gpu = torch.device(kernels.NAME, 0)
        self._marks: list[int] = [-1]
        self._marked: list[str] = [""]
        self._special = {
            aten._local_scalar_dense.default: self._item,
            aten._to_copy.default: self._to_copy,
            aten.copy_.default: self._copy,
            aten.equal.default: self._equal,
            aten.add.Tensor: self._add,
            aten._index_put_impl_.default: self._index_put,
            aten.index.Tensor: self._index,
            aten.masked_select.default: self._masked_select,
            **dict.fromkeys(kernels.REDUCED, self._loss),
            aten.convolution.default: self._convolution,
            aten.convolution_backward.default: self._convolution_backward,
            **dict.fromkeys(kernels.NORMS_BACKWARD, self._norm_backward),
            **dict.fromkeys(kernels.CTC_BACKWARD, self._ctc_backward),
        }
        self._events_append = self.events.append
        self.values = Values(self.index, self.sizes.__getitem__)
        self.assumed: list[str] = []  # what was assumed of values that depend on weights
        self.assumptions = Assumptions()

    # what is asked from outside

    def assume(self, assumptions: Assumptions) -> None:
        """Let values that depend on weights be as a user declares."""
        self.assumptions = assumptions
        self.values.is_balanced = assumptions.is_balanced

    def step(self, number: int) -> None:
        """A step begins here; what is left of the one before, and is nothing else, stays for good."""
        if number:
            for index in self.alive():
                self.claimed.setdefault(index, "buffer")
        self._events_append((_STEP, number, 0))

    def position(self) -> tuple[int, int, int]:
        """Return where the record stands."""
        return len(self.ops), len(self.sizes), len(self.events)

    def forget(self, position: tuple[int, int, int]) -> None:
        """Drop what was noted since a position, save what it made that is still there."""
        operators, storages, events = position
        alive = self.alive()
        kept = [event for event in self.events[events:] if event[0] == _ALLOC and event[1] in alive]
        self.events[events:] = kept
        for index in range(storages, len(self.made)):
            self.made[index] = (-1, *self.made[index][1:])
        del self.ops[operators:]

    def note(self, sentence: str) -> None:
        """Keep a sentence about what could not be followed exactly."""
        if sentence not in self.notes and self.phase != "build":
            self.notes.append(sentence)

    def enter(self, name: str) -> None:
        """A module's forward begins."""
        if not self.modules:
            self._first = len(self.sizes)
        self.entered = True
        self.modules.append(name)
        self._mark(name)

    def leave(self) -> None:
        """A module's forward has ended."""
        if self.modules:
            self.modules.pop()
        if not self.modules and self.phase == "backward":  # what a checkpoint computed again, for its own backward
            self.kept.update(index for index in self.alive() if index >= self._first)
        self._mark(self.modules[-1] if self.modules else "")

    def _mark(self, name: str) -> None:
        number = _torch.autograd._get_sequence_nr()
        if self._marks[-1] == number:
            self._marked[-1] = name
        else:
            self._marks.append(number)
            self._marked.append(name)

    def wake(self, tensor: torch.Tensor) -> None:
        """Note the allocation of a tensor that was made while nothing was on the device yet."""
        index = self.index(tensor)
        if self.dormant and self.dormant.pop(index, None) is not None:
            self._events_append((_ALLOC, index, 0))

    def index(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, -1 for one that is not on the device."""
        life = self._lives.get(tensor.untyped_storage()._cdata)
        return -1 if life is None else life.index

    def alive(self) -> set[int]:
        """Return the numbers of all storages that are there now."""
        return {life.index for life in self._lives.values() if life.key not in self._hollow}

    def claim(self, tensor: torch.Tensor, category: str, module: str | None = None) -> None:
        """Say what a tensor's storage is for, and whose it is."""
        for plain in plain_tensors(tensor):
            self.wake(plain)
            index = self.index(plain)
            if index >= 0 and index not in self.claimed:
                self.claimed[index] = category
                if module is not None:
                    self.made[index] = (*self.made[index][:2], module)

    def rest(self) -> None:
        """Note the allocation of everything else that was made while the model was built."""
        for index in list(self.dormant or {}):
            self._events_append((_ALLOC, index, 0))
            self.claimed.setdefault(index, "input")
        self.dormant = None
        for index in self.alive():
            self.claimed.setdefault(index, "input")

    def forward_begins(self) -> None:
        """A forward begins: until a module is called, inputs are made."""
        self.phase, self.entered = "forward", False
        self.modules.clear()

    def empty_input(self) -> tuple[int, ...] | None:
        """Return the shape of an input without elements, where no input has any."""
        given = "input" in self.claimed.values() or any(part == "input" for _, part, _ in self.made)
        return None if given else self._empty

    def backward_begins(self) -> None:
        """The forward has ended."""
        self.phase = "backward"
        self.modules.clear()
        self.kept |= self.alive()

    def backward_ended(self, model: torch.nn.Module) -> None:
        """All gradients are there."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                self.claim(parameter.grad, "gradient")

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step has ended."""
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.claim(value, "optimizer")

    def categories(self) -> list[str]:
        """Return what each storage is for."""
        labels = []
        for index, (_op, part, _module) in enumerate(self.made):
            category = self.claimed.get(index)
            if category is None and part == "input":
                category = "input"
            if category is None:
                category = "activation" if index in self.kept and part in ("forward", "again") else "temporary"
            labels.append(category)
        return labels

    # storages

    def _own(self, tensor: torch.Tensor, size_bytes: int) -> int:
        storage = tensor.untyped_storage()
        life = _Life(storage, self._freed)
        life.index, life.key = self._number(size_bytes), storage._cdata
        self._lives[life.key] = life
        return life.index

    def _number(self, size_bytes: int) -> int:
        """Return the number of a new piece of memory, its allocation noted."""
        index = len(self.sizes)
        self.sizes.append(size_bytes)
        self.made.append((self._making, self._part(), self.module()))
        if self.dormant is not None and self.phase == "build":
            self.dormant[index] = index
        else:
            self._events_append((_ALLOC, index, 0))
        return index

    def refill(self, tensor: torch.Tensor, *, is_full: bool) -> None:
        """Note that a storage of gathered parameters gives its memory back and stays, or takes memory again."""
        life = self._lives[tensor.untyped_storage()._cdata]
        if is_full == (life.key not in self._hollow):
            return
        if is_full:
            self._hollow.discard(life.key)
            life.index = self._number(self.sizes[life.index])
            self.claimed[life.index] = "parameter"
        else:
            self._hollow.add(life.key)
            self._events_append((_FREE, life.index, 0))

    def _part(self) -> str:
        if self.phase == "forward":
            given = not self.modules and (not self.entered or self._making < 0)
            return "input" if given else "forward"
        return "again" if self.modules and self.phase == "backward" else self.phase

    def _freed(self, life: _Life) -> None:
        del self._lives[life.key]
        self.values.forget(life.index)
        if self.phase == "end" or life.key in self._hollow:
            self._hollow.discard(life.key)
            return
        if self.dormant and self.dormant.pop(life.index, None) is not None:
            return
        self._events_append((_FREE, life.index, 0))

    def new(self, shape: Any, strides: Any, dtype: torch.dtype, elements: int) -> torch.Tensor:
        """Return a tensor on the device, its allocation noted."""
        tensor: torch.Tensor = _EMPTY(shape, dtype)
        if tensor.stride() != strides:
            tensor = _STRIDED.redispatch(_META, tensor, shape, strides, 0)
        if elements:
            self._own(tensor, elements * dtype.itemsize)
        elif self.phase == "forward" and not self.entered:
            self._empty = tuple(shape)
        return tensor

    def resize(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        """Give a tensor another shape, and more memory where it needs that."""
        shape = tuple(shape)
        life = self._lives.get(tensor.untyped_storage()._cdata)
        room = 0 if life is None else self.sizes[life.index]
        elements = math.prod(shape)
        if elements * tensor.dtype.itemsize > room:
            tensor.data = self.new(shape, _EMPTY(shape, tensor.dtype).stride(), tensor.dtype, elements)
        elif shape != tuple(tensor.shape):
            strides = _EMPTY(shape, tensor.dtype).stride()
            tensor.data = _STRIDED.redispatch(_META, tensor, shape, strides, tensor.storage_offset())
        return tensor

    def module(self) -> str:
        """Return the path of the module at work."""
        if self.modules:
            return self.modules[-1]
        node = _NODE()
        if node is None:
            return ""
        at = bisect.bisect_right(self._marks, node._sequence_nr()) - 1
        return self._marked[at]

    # operators

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator on the device returns."""
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        ordered = kernels.CONTIGUOUS.get(func)
        if ordered is not None and not all(args[at].is_contiguous() for at in ordered):
            args = tuple(arg.contiguous() if at in ordered else arg for at, arg in enumerate(args))
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []
        self._mixed = False
        key = self._key(func, args, kwargs, tensors)
        if self._mixed and func not in _BETWEEN:
            args, kwargs = self._here(func, args), {name: self._here(func, value) for name, value in kwargs.items()}
            return self._run(func, args, kwargs)
        if func.overloadpacket in _DATA_DEPENDENT:
            return self._decide(key, func, args, kwargs, tensors)
        signature = self.signatures.get(key)
        if signature is None:
            try:
                signature = self._learn(key, func, args, kwargs, tensors)
            except Unpredictable:
                return self._decide(key, func, args, kwargs, tensors)
        out = self._play(signature, tensors)
        self.values.follow(func, args, kwargs, tensors, out, live=self.phase in ("forward", "backward"))
        return out

    def _decide(self, key: Any, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Return what an operator returns whose shape follows from values."""
        real = {id(tensor): self._asked(tensor, func) for tensor in tensors}
        if any(value is None for value, _ in real.values()):
            return self._guess(key, func, args, kwargs, tensors)
        is_assumed = any(assumed for _, assumed in real.values())

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return real[id(value)][0]
            return type(value)([host(each) for each in value]) if type(value) in (list, tuple) else value

        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            made = func(*[host(arg) for arg in args], **{name: host(value) for name, value in kwargs.items()})
        forms = [(tuple(each.shape), each.stride(), each.dtype) for each in flattened(made)]
        key = (key, tuple(forms))
        signature = self.signatures.get(key)
        if signature is None:
            signature = self._learn(key, func, args, kwargs, tensors, made=_without_data(made))
        out = self._play(signature, tensors)
        for tensor, value in zip(flattened(out), flattened(made), strict=True):
            self.values.give(tensor, value, is_assumed=is_assumed)
        return out

    def _guess(self, key: Any, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Return the numbers of a mask whose values cannot be computed: of a share of it."""
        if func is not aten.nonzero.default:
            raise Unpredictable(f"the output shape of {func} depends on data")
        share = self.assumptions.selected
        count = round(tensors[0].numel() * (_SELECTED if share is None else share))
        self._assume(func)
        key = (key, count)
        signature = self.signatures.get(key)
        if signature is None:
            made = torch.empty([tensors[0].dim(), count], dtype=torch.int64, device="meta").t()
            signature = self._learn(key, func, args, kwargs, tensors, made=made)
        return self._play(signature, tensors)

    def _asked(self, tensor: torch.Tensor, func: Any) -> tuple[torch.Tensor | None, bool]:
        """Return the values of a tensor that decides a shape, and whether they are assumed."""
        known = self.values.known(tensor)
        if known is None:
            return None, True
        value, is_assumed = known
        if is_assumed:
            self._assume(func)
            if self.assumptions.selected is not None and func is aten.nonzero.default:
                value = torch.rand(tensor.shape, device="cpu") < self.assumptions.selected
        return value, is_assumed

    def _assume(self, what: object) -> None:
        sentence = f"{what} in {self.module() or 'the loss'}"
        if sentence not in self.assumed:
            self.assumed.append(sentence)

    def _here(self, func: Any, value: Any) -> Any:
        """Return an index of the host as one of the device; while a model is built, any tensor.

        Only large ones are on the device then, and their values are not needed.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self._here(func, each) for each in value)
        if not isinstance(value, torch.Tensor) or not value.dim() or value.device == self._gpu:
            return value
        if func in _INDEXED or self.phase == "build":
            return value.to(kernels.NAME)
        raise Mixed(value)

    def _key(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Return what the outcome of a call depends on, and its tensors in order."""
        parts: list[Any] = [func]
        self._parts(args, parts, tensors)
        for name, value in kwargs.items():
            if name == "generator":
                continue
            parts.append(name)
            if name == "device":
                parts.append(None if value is None else value.type)
            else:
                self._parts((value,), parts, tensors)
        if not tensors:
            parts.append(typed_values(args))
        return tuple(parts)

    def _parts(self, args: Any, parts: list[Any], tensors: list[torch.Tensor]) -> None:
        for arg in args:
            if isinstance(arg, torch.Tensor):
                tensors.append(arg)
                parts.append(arg.shape)
                parts.append(arg.stride())
                parts.append(arg.dtype)
                if arg.device != self._gpu:
                    parts.append("host")
                    self._mixed = self._mixed or arg.dim() > 0
            elif isinstance(arg, (list, tuple)):
                parts.append(len(arg))
                self._parts(arg, parts, tensors)
            elif isinstance(arg, float):
                parts.append(float)
            elif isinstance(arg, bool):
                parts.append((bool, arg))
            elif isinstance(arg, _GENERATOR):
                continue
            else:
                parts.append(arg)

    def _learn(
        self, key: Any, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], *, made: Any = None
    ) -> Signature:
        """Find out what comes out of a call from its arguments' form alone, unless that is given as `made`."""
        held: list[torch.Tensor] = []

        def bare(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if value.device == self._gpu:
                    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                elif value.dim() == 0:
                    meta = value
                else:
                    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                held.append(meta)
                return meta
            if isinstance(value, (list, tuple)):
                return type(value)(bare(each) for each in value) if type(value) in (list, tuple) else value
            if isinstance(value, torch.device):
                return torch.device("meta") if value.type == kernels.NAME else value
            return None if isinstance(value, _GENERATOR) else value

        plain = numbers_as_tensors(func, [bare(arg) for arg in args])
        named = {name: bare(value) for name, value in kwargs.items()}
        rule = kernels.SHAPES.get(func)
        try:
            if made is None:
                made = rule(*plain, **named) if rule is not None else func(*plain, **named)
        except RuntimeError as error:
            if not isinstance(error, NotImplementedError) and "meta tensor" not in str(error):
                raise
            if "nonzero" in str(error):
                raise Unpredictable(f"the output shape of {func} depends on data") from error
            raise Unpredictable(f"{func} cannot be traced without data: {str(error).splitlines()[0]}") from error
        recipe = self._recipe(made, held, [tuple(tensor.shape) for tensor in tensors])
        if func in kernels.ORDER:
            recipe = (*recipe[:3], kernels.ORDER[func])
        signature = Signature(len(self.signatures), str(func), recipe, launches(func, recipe))
        self.signatures[key] = signature
        signature.inputs = [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in tensors]
        signature.outputs = []
        describe_outputs(recipe, held, signature.outputs)
        count = [0]
        signature.arguments = [describe_argument(arg, count) for arg in args]
        signature.keywords = [[name, describe_argument(value, count)] for name, value in kwargs.items()]
        return signature

    def _recipe(self, out: Any, held: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Any:
        if isinstance(out, torch.Tensor):
            for at, meta in enumerate(held):
                if out is meta:
                    grown = tuple(meta.shape) if tuple(meta.shape) != shapes[at] else None
                    return (SAME, at, grown)
            storage = out.untyped_storage()._cdata
            for at, meta in enumerate(held):
                if meta.device.type == "meta" and meta.untyped_storage()._cdata == storage:
                    return (VIEW, at, tuple(out.shape), tuple(out.stride()), out.storage_offset(), out.dtype)
            if out.device.type == "cpu":
                return (VALUE, out)
            whole = out.untyped_storage().nbytes() // out.dtype.itemsize
            return (NEW, tuple(out.shape), tuple(out.stride()), out.dtype, (storage, out.storage_offset(), whole))
        if isinstance(out, (list, tuple)):
            return (LIST, type(out) is tuple, [self._recipe(each, held, shapes) for each in out], None)
        return (VALUE, out)

    # what compiled code runs

    def run_into(self, func: Any, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
        """Note an operator that writes into a tensor that is there."""
        tensors: list[torch.Tensor] = []
        key = self._key(func, args, kwargs, tensors)
        signature = self.signatures.get(key) or self._learn(key, func, args, kwargs, tensors)
        self._note(signature, tensors, [out])
        return out

    def launch(self, name: str, read: list[torch.Tensor], written: list[torch.Tensor], facts: dict[str, Any]) -> None:
        """Note a kernel that no operator stands for."""
        forms = [[(tuple(t.shape), tuple(t.stride()), t.dtype) for t in each] for each in (read, written)]
        key = (name, *map(tuple, forms), *facts.items())
        signature = self.signatures.get(key)
        if signature is None:
            signature = self.signatures[key] = Signature(len(self.signatures), name, None, recorded=True)
            signature.inputs, signature.outputs = forms
            signature.keywords = [list(each) for each in facts.items()]
        self._note(signature, read, written)

    def _note(self, signature: Signature, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        number = len(self.ops)
        self._events_append((_BEGIN, number, 0))
        used, made = (tuple(self.index(each) for each in tensors) for tensors in (read, written))
        self.ops.append((signature, self.phase, self.module(), used, made))
        self._events_append((_END, number, 0))

    def _play(self, signature: Signature, tensors: list[torch.Tensor]) -> Any:
        if not signature.recorded:
            self._making = -1
            return self._make(signature.recipe, tensors, None, {})
        number = self._making = len(self.ops)
        self._events_append((_BEGIN, number, 0))
        made: list[int] = []
        out = self._make(signature.recipe, tensors, made, {})
        lives = self._lives
        used = []
        for tensor in tensors:
            life = lives.get(tensor.untyped_storage()._cdata)
            used.append(-1 if life is None else life.index)
        self.ops.append((signature, self.phase, self.module(), tuple(used), tuple(made)))
        self._events_append((_END, number, 0))
        return out

    def _make(self, recipe: Any, tensors: list[torch.Tensor], made: list[int] | None, fresh: dict[int, Any]) -> Any:
        kind = recipe[0]
        if kind == LIST:
            return self._make_all(recipe, tensors, made, fresh)
        if kind == VALUE:
            return recipe[1]
        if kind == NEW:
            tensor = self._make_new(recipe, fresh)
        elif kind == SAME:
            tensor = tensors[recipe[1]]
            if recipe[2] is not None:
                self.resize(tensor, recipe[2])
        else:
            _, at, shape, strides, offset, dtype = recipe
            base = tensors[at]
            if base.dtype is not dtype:
                base = aten.view.dtype.redispatch(_META, base, dtype)
            tensor = _STRIDED.redispatch(_META, base, shape, strides, tensors[at].storage_offset() + offset)
        if made is not None:
            made.append(self.index(tensor))
        return tensor

    def _make_new(self, recipe: Any, fresh: dict[int, Any]) -> Any:
        _, shape, strides, dtype, (storage, offset, whole) = recipe
        base = fresh.get(storage)
        if base is None:
            base = fresh[storage] = self.new(shape, strides, dtype, whole)
            if not offset:
                return base
        return _STRIDED.redispatch(_META, base, shape, strides, offset)

    def _make_all(self, recipe: Any, tensors: list[torch.Tensor], made: list[int] | None, fresh: dict[int, Any]) -> Any:
        _, is_tuple, parts, order = recipe
        if order is None:
            items = [self._make(each, tensors, made, fresh) for each in parts]
            return tuple(items) if is_tuple else items
        ready = {at: self._make(parts[at], tensors, None, fresh) for at in order}
        if made is not None:
            made.extend(self.index(ready[at]) for at in range(len(parts)) if isinstance(ready[at], torch.Tensor))
        return tuple(ready[at] for at in range(len(parts)))

    # operators that look at data, or move it

    def _add(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add; the engine adds gradients of one tensor in place where it alone holds the first, as it does on CUDA.

        To the engine a device in Python looks like a tensor subclass, which it spares that. Gradients that are to be
        differentiated again are never added in place.
        """
        if sys._getframe(3).f_code is _ENGINE and not kwargs and not torch.is_grad_enabled():
            first = args[0]
            counts = (first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata))
            if alone is None:
                counted.append(counts)
            elif counts == alone and first.shape == args[1].shape and first.dtype is args[1].dtype:
                return self._run(aten.add_.Tensor, args, kwargs)
        return self._run(func, args, kwargs)

    def _loss(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute a loss; CUDA has it for each element before it adds them up."""
        out = self._run(func, args, kwargs)
        if kernels.reduction(args[2:], kwargs):
            torch.empty(kernels.spread(args[0], args[1]), dtype=out.dtype, device=kernels.NAME)
        return out

    def _index_put(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Put values at indices; to add them up, CUDA sorts the indices and wants the values in order."""
        accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        if accumulate and args[2].dim() and not args[2].is_contiguous():
            args = (*args[:2], args[2].contiguous(), *args[3:])
        return self._run(func, (args[0], self._numbers(args[1]), *args[2:]), kwargs)

    def _convolution(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Convolve; what does not lie in the order that cuDNN computes in is copied, the weight after the output."""
        data, weight = args[:2]
        order = kernels.layout(data, weight)
        data = data.contiguous(memory_format=order)
        out = self._run(func, (data, *args[1:]), kwargs)
        weight.contiguous(memory_format=order)
        return out

    def _convolution_backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Differentiate a convolution; copies of the data, which only its weight needs, and of the gradient last."""
        grad, data, weight = args[:3]
        order = kernels.layout(data, weight)
        held = data.contiguous(memory_format=order) if args[-1][1] else None
        grad = grad.contiguous(memory_format=order)
        out = self._run(func, (grad, *args[1:]), kwargs)
        weight.contiguous(memory_format=order)
        del held
        return out

    def _ctc_backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Differentiate a CTC loss; CUDA needs as much memory for sums over paths as the forward did."""
        held = torch.empty_like(args[6])
        out = self._run(func, args, kwargs)
        del held
        return out

    def _norm_backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Differentiate a norm; CUDA copies a gradient that does not lie in order once the outputs are there."""
        grad, data = args[:2]
        out = self._run(func, (grad, data.contiguous(), *args[2:]), kwargs)
        grad.contiguous()
        return out

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        known = self.values.known(tensor) if self.phase in ("forward", "backward") else None
        if known is not None:
            return self._assumed_truth(func, tensor, known[0]) if known[1] else known[0].item()
        whole = not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool
        if whole and (self.phase == "forward" or self.modules):
            raise Unpredictable("the model reads an integer from a tensor on the device (.item(), .tolist())")
        if tensor.dtype is torch.bool:
            return self._is_whole(self.index(tensor))
        if self.phase != "optimizer":  # a gradient scaler asks whether there were infinities
            self.note("the step reads the value of a tensor: zero was assumed")
        return 0 if whole else 0.0

    def _assumed_truth(self, func: Any, tensor: torch.Tensor, value: torch.Tensor) -> Any:
        """Return a number or truth that random values gave; a mask of weights that may hide nothing hides nothing."""
        if tensor.dtype is torch.bool and self._is_whole(self.index(tensor)):
            return True
        self._assume(func)
        if tensor.dtype is torch.bool and self.assumptions.selected is not None:
            return self.assumptions.selected > 0
        return value.item()

    def _is_whole(self, index: int) -> bool:
        """Tell whether a truth value says that all of a mask is set, by `all` or a count: masks hide nothing here."""
        call, used = self._made_by(index)
        if call is None or call.name != "aten.eq.Scalar":
            return call is not None and call.name.startswith("aten.all.")
        counted, _ = self._made_by(used[0])
        if counted is None or not counted.name.startswith("aten.sum."):
            return False
        return bool(math.prod(counted.inputs[0][0]) == call.arguments[1])

    def _made_by(self, index: int) -> tuple[Signature | None, tuple[int, ...]]:
        """Return the call that made a storage, and what it used."""
        maker = self.made[index][0] if index >= 0 else -1
        return (None, ()) if maker < 0 else (self.ops[maker][0], self.ops[maker][3])

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        both = [self.values.known(each) for each in args[:2]]
        return all(both) and _torch.equal(*(each[0] for each in both if each is not None))

    def _to_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        source, target = args[0], kwargs.get("device")
        if target is None or target.type == kernels.NAME:
            return self._run(func, args, kwargs)
        known = self.values.known(source) if self.phase != "build" else None
        if known is not None:
            if known[1]:
                self._assume(func)
            return known[0].to(kwargs.get("dtype") or source.dtype, copy=True)
        if source.dim() and not source.dtype.is_floating_point and self.phase != "build":
            raise Unpredictable("the step copies integers from the device to the host")
        self.note("the step copies data from the device to the host: zeros were assumed")
        return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype, device=target)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        if target.device != self._gpu:
            known = self.values.known(source) if self.phase != "build" else None
            return target if known is None else target.copy_(known[0])
        out = self._run(func, args, kwargs)
        if self.phase == "build" and source.device.type == "cpu" and not source.dtype.is_floating_point:
            self.values.give(target, source)
        return out

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Index; CUDA makes numbers of a mask first."""
        return self._run(func, (args[0], self._numbers(args[1]), *args[2:]), kwargs)

    def _numbers(self, indices: Any) -> list[Any]:
        """Return indices with the numbers of what a mask selects, one tensor for each of its dimensions."""
        numbers: list[Any] = []
        for each in indices:
            if each is None or each.dtype not in (torch.bool, torch.uint8):
                numbers.append(each)
                continue
            mask = each.to(kernels.NAME) if each.device.type == "cpu" else each
            selected = self.call(aten.nonzero.default, (mask,), {})
            numbers += [selected.select(1, at) for at in range(each.dim())]
        return numbers

    def _masked_select(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Select by a mask, which CUDA does by its numbers."""
        data, mask = _torch.broadcast_tensors(*args[:2])
        return self._index(aten.index.Tensor, (data, [mask]), {})


def _without_data(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    return type(made)([_without_data(each) for each in made]) if isinstance(made, (list, tuple)) else made


_SELECTED = 0.5  # of a mask whose values are not computed
_DATA_NAMES = (
    "nonzero nonzero_numpy argwhere masked_select bincount unique_dim _unique _unique2 unique_consecutive "
    "unique_dim_consecutive"
)
_DATA_DEPENDENT = frozenset(getattr(aten, name) for name in _DATA_NAMES.split() if hasattr(aten, name))
_BETWEEN = frozenset((aten.copy_.default, aten._to_copy.default, aten.set_.source_Tensor))
_INDEXED = frozenset((aten.index.Tensor, aten._index_put_impl_.default, aten.index_put_.default))

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
counted: list[tuple[int, int]] = []  # references to gradients and to their storages, as they were seen
alone: tuple[int, int] | None = None  # references that a gradient has which nobody but the engine holds
