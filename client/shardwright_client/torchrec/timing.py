"""Times the embedding part of single training steps, by marks at the ends of lookups and exchanges."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import LazyAwaitable, LazyNoWait

logger = logging.getLogger(__name__)

_LOOKUP, _EXCHANGE_BEGINS, _EXCHANGE_ENDS = "LookupFunction", "All2All_Pooled_Wait", "All2All_Pooled_Req"
"""Parts of the names of autograd's nodes: of FBGEMM's operator, and of TorchRec's exchange, backward."""

Mark = Any


class Clock(Protocol):
    """Tells the time of a device."""

    def mark(self) -> Mark:
        """Now, when the device comes to it."""

    def passed(self, mark: Mark) -> bool:
        """Whether the device has come to it; does not wait."""

    def between_ms(self, first: Mark, last: Mark) -> float:
        """Milliseconds between two marks that have passed."""


class HostClock:
    """For what runs on the processor."""

    def mark(self) -> Mark:
        """Seconds."""
        return time.perf_counter()

    def passed(self, mark: Mark) -> bool:
        """Always."""
        return True

    def between_ms(self, first: Mark, last: Mark) -> float:
        """See ``Clock``."""
        return float(last - first) * 1e3


class CudaClock:
    """Events on the current stream: nothing waits for the GPU."""

    def mark(self) -> Mark:
        """An event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def passed(self, mark: Mark) -> bool:
        """See ``Clock``."""
        return bool(mark.query())

    def between_ms(self, first: Mark, last: Mark) -> float:
        """See ``Clock``."""
        return float(first.elapsed_time(last))


class _Pass:
    """One direction of one step: marks in the order of time, and between which of them lookups ran."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.lookups: list[tuple[int, int]] = []
        self._began = 0

    def note(self, mark: Mark) -> None:
        self.marks.append(mark)

    def lookup_begins(self, mark: Mark) -> None:
        self._began = len(self.marks)
        self.note(mark)

    def lookup_ends(self, mark: Mark) -> None:
        self.lookups.append((self._began, len(self.marks)))
        self.note(mark)


class StepMarks:
    """What was marked in one step: of each sharded module its forward and its backward pass."""

    def __init__(self) -> None:
        self.forward: list[_Pass] = []
        self.backward: list[_Pass] = []

    def passed(self, clock: Clock) -> bool:
        """Whether the device has come to all of it; does not wait."""
        return all(clock.passed(each.marks[-1]) for each in (*self.forward, *self.backward) if each.marks)

    def costs_ms(self, clock: Clock) -> dict[str, float] | None:
        """Milliseconds by the names of an observation; None where a pass is missing, as without training.

        The exchange is what a pass takes besides its lookups.
        """
        if not self.forward or not all(each.marks for each in (*self.forward, *self.backward)):
            return None
        costs, total = dict[str, float](), 0.0
        for direction, passes in (("forward", self.forward), ("backward", self.backward)):
            span = sum(clock.between_ms(each.marks[0], each.marks[-1]) for each in passes)
            lookups = sum(
                clock.between_ms(each.marks[first], each.marks[last]) for each in passes for first, last in each.lookups
            )
            costs |= {f"{direction}_compute_ms": lookups, f"{direction}_comm_ms": max(span - lookups, 0.0)}
            total += span
        return costs | {"total_ms": total}


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong while timing ends the timing, never the training."""

    @wraps(method)
    def guarded(self: "StepTimer", *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception:
            logger.warning("timing of embeddings ends, training goes on", exc_info=True)
            self.give_up()

    return guarded


class StepTimer:
    """Marks the steps that are asked for, in the sharded EmbeddingBagCollections of a model.

    In such a step a module's exchange is waited for at once and not where its result is used, so that what runs beside
    it does not count. In others nothing is done but to look at a flag.

    Where exchanges are waited for says in which order autograd begins those of the backward pass. All ranks must begin
    them in one order, so steps are the same on all ranks, and a rank that gives up timing waits as before.

    Args:
        model: after DistributedModelParallel.
        clock: of its device.
    """

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self._step: StepMarks | None = None
        self._waits = self._gave_up = False
        self._clock = clock
        self._hooks: list[Any] = []
        for module in model.modules():
            if isinstance(module, ShardedEmbeddingBagCollection):
                self._watch(module)

    @property
    def watches(self) -> bool:
        """Whether there is anything to time, still."""
        return bool(self._hooks)

    def begin_step(self, timed: bool) -> StepMarks | None:
        """Says whether the step that begins is to be marked; answers with the marks of the last one, where it was."""
        marked = self._step
        self._waits = timed
        self._step = StepMarks() if timed and not self._gave_up else None
        return marked

    def give_up(self) -> None:
        """Marks nothing any more."""
        self._step, self._gave_up = None, True

    def close(self) -> None:
        """Leaves the model as it was."""
        self.give_up()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self, module: Any) -> None:
        self._hooks += [
            module.register_forward_pre_hook(lambda found, _: self._module_begins(found)),
            module.register_forward_hook(lambda found, _, output: self._module_ends(found, output)),
        ]
        for lookup in module._lookups:  # the module shows its own parameters only
            self._hooks += [
                lookup.register_forward_pre_hook(lambda *_: self._lookup_begins()),
                lookup.register_forward_hook(lambda *_: self._lookup_ends()),
            ]

    @_guarded
    def _module_begins(self, module: nn.Module) -> None:
        if self._step is not None and module.training:
            self._step.forward.append(_Pass())

    @_guarded
    def _lookup_begins(self) -> None:
        if self._step is not None and self._step.forward:
            self._step.forward[-1].lookup_begins(self._clock.mark())

    @_guarded
    def _lookup_ends(self) -> None:
        if self._step is not None and self._step.forward:
            self._step.forward[-1].lookup_ends(self._clock.mark())

    def _module_ends(self, module: nn.Module, output: Any) -> Any:
        if not self._waits or not module.training or not isinstance(output, LazyAwaitable):
            return None
        result = output.wait()
        self._exchange_ends(result)
        return LazyNoWait(result)

    @_guarded
    def _exchange_ends(self, result: Any) -> None:
        if self._step is None:
            return
        self._step.forward[-1].note(self._clock.mark())
        backward = _Pass()
        self._step.backward.append(backward)
        for node in _nodes(result.values().grad_fn):
            _watch_backward(node, backward, self._clock)


def _nodes(root: Any) -> Sequence[Any]:
    """The nodes of autograd's graph from a module's output to its lookups."""
    waiting, found = [root], dict[int, Any]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in found:
            continue
        found[id(node)] = node
        if _LOOKUP not in node.name():
            waiting += [following for following, _ in node.next_functions]
    return list(found.values())


def _watch_backward(node: Any, backward: _Pass, clock: Clock) -> None:
    name = node.name()
    if _LOOKUP in name:
        node.register_prehook(lambda *_: backward.lookup_begins(clock.mark()))
        node.register_hook(lambda *_: backward.lookup_ends(clock.mark()))
    elif _EXCHANGE_BEGINS in name:
        node.register_prehook(lambda *_: backward.note(clock.mark()))
    elif _EXCHANGE_ENDS in name:
        node.register_hook(lambda *_: backward.note(clock.mark()))
