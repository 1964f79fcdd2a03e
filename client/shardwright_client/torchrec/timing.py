"""Times the embedding part of single training steps, by marks at the ends of lookups and exchanges.

Nothing is waited for: exchanges tell of their end by themselves. Where one is waited for says in which order autograd
begins those of the backward pass, which must be the same on all ranks, so timing must not change it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import LazyAwaitable

logger = logging.getLogger(__name__)

_LOOKUP, _EXCHANGE = "LookupFunction", "All2All_Pooled_Wait"
"""Parts of the names of autograd's nodes: FBGEMM's operator, and what begins TorchRec's exchange backward."""

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


@dataclass(slots=True)
class _Interval:
    """From one mark to another; the end is None until it is marked."""

    begin: Mark
    end: Mark | None = None


class _Pass:
    """One direction of one step through a module: its lookups and its exchanges."""

    def __init__(self) -> None:
        self.lookups: list[_Interval] = []
        self.exchanges: list[_Interval] = []

    def passed(self, clock: Clock) -> bool:
        """Whether all that has begun has ended."""
        return all(each.end is not None and clock.passed(each.end) for each in (*self.lookups, *self.exchanges))

    def covered_ms(self, clock: Clock) -> tuple[float, float]:
        """Milliseconds in which lookups ran, and in which lookups or exchanges did."""
        begun = (*self.exchanges, *self.lookups)
        at = {
            id(each): (clock.between_ms(begun[0].begin, each.begin), clock.between_ms(begun[0].begin, each.end))
            for each in begun
        }
        return _length(at[id(each)] for each in self.lookups), _length(at.values())


class StepMarks:
    """What was marked in one step: of each sharded module its forward and its backward pass."""

    def __init__(self) -> None:
        self.called: list[nn.Module] = []
        self.forward: list[_Pass] = []
        self.backward: list[_Pass] = []

    @property
    def repeated(self) -> bool:
        """Whether a module was called more than once, as where gradients of several batches are accumulated."""
        return len(set(self.called)) < len(self.called)

    @property
    def whole(self) -> bool:
        """Whether every lookup that began was marked to its end; one that failed never is."""
        return all(lookup.end is not None for each in (*self.forward, *self.backward) for lookup in each.lookups)

    def passed(self, clock: Clock) -> bool:
        """Whether the device has come to all of it; does not wait."""
        return all(each.passed(clock) for each in (*self.forward, *self.backward))

    def costs_ms(self, clock: Clock) -> dict[str, float] | None:
        """Milliseconds by the names of an observation; None where a pass is missing, as without training.

        An exchange counts from its beginning on this rank to its end, but for the lookups that ran meanwhile.
        """
        passes = (*self.forward, *self.backward)
        if not passes or len(self.forward) != len(self.backward):
            return None
        if not all(each.lookups or each.exchanges for each in passes):
            return None
        costs = dict[str, float]()
        for direction, of_modules in (("forward", self.forward), ("backward", self.backward)):
            covered = [each.covered_ms(clock) for each in of_modules]
            costs[f"{direction}_compute_ms"] = sum(lookups for lookups, _ in covered)
            costs[f"{direction}_comm_ms"] = sum(both - lookups for lookups, both in covered)
        return costs | {"total_ms": sum(costs.values())}


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    """Of the union of intervals."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong while timing ends the timing, never the training."""

    @wraps(method)
    def guarded(self: "StepTimer", *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception:
            logger.warning("timing of embeddings ends, training goes on", exc_info=True)
            self.close()

    return guarded


class StepTimer:
    """Marks the steps that are asked for, in the sharded EmbeddingBagCollections of a model.

    In other steps nothing is done but to look whether there is anything to do.

    Args:
        model: after DistributedModelParallel.
        clock: of its device.
    """

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self._step: StepMarks | None = None
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
        marked, self._step = self._step, StepMarks() if timed and self.watches else None
        return marked

    def close(self) -> None:
        """Leaves the model as it was."""
        self._step = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self, module: Any) -> None:
        for lookup in module._lookups:  # the module shows its own parameters only
            self._hooks += [
                lookup.register_forward_pre_hook(lambda *_: self._lookup_begins(module)),
                lookup.register_forward_hook(lambda *_: self._lookup_ends(module)),
            ]
        self._hooks += [
            module.register_forward_pre_hook(lambda found, _: self._module_begins(found)),
            module.register_forward_hook(lambda found, _, output: self._exchanges_begin(found, output)),
        ]

    @_guarded
    def _module_begins(self, module: nn.Module) -> None:
        if self._step is not None and module.training:
            self._step.called.append(module)
            self._step.forward.append(_Pass())

    @_guarded
    def _lookup_begins(self, module: nn.Module) -> None:
        if self._step is not None and module.training and self._step.forward:
            self._step.forward[-1].lookups.append(_Interval(self._clock.mark()))

    @_guarded
    def _lookup_ends(self, module: nn.Module) -> None:
        if self._step is not None and module.training and self._step.forward:
            self._step.forward[-1].lookups[-1].end = self._clock.mark()

    @_guarded
    def _exchanges_begin(self, module: nn.Module, output: Any) -> None:
        """Each lookup's output is exchanged as soon as it is there."""
        step = self._step
        if step is None or not module.training or not isinstance(output, LazyAwaitable):
            return
        forward = step.forward[-1]
        # Not as an attribute: it waits for the result where it has no such attribute.
        for lookup, awaited in zip(forward.lookups, vars(output)["_awaitables"], strict=True):
            request = getattr(awaited, "_tensor_awaitable", None)
            # A rank that is alone has nothing to exchange.
            if getattr(request, "req", None) is not None:
                forward.exchanges.append(_Interval(lookup.end))
                self._watch_end(forward.exchanges[-1], request)
        output.callbacks.append(lambda result: self._waited(step, result))

    def _waited(self, step: StepMarks, result: Any) -> Any:
        self._watch_backward(step, result)
        return result

    @_guarded
    def _watch_backward(self, step: StepMarks, result: Any) -> None:
        backward = _Pass()
        step.backward.append(backward)
        for node in _nodes(result.values().grad_fn):
            if _LOOKUP in node.name():
                node.register_prehook(lambda *_: self._backward_begins(backward.lookups))
                node.register_hook(lambda *_: self._backward_lookup_ends(backward))
            elif _EXCHANGE in node.name():
                node.register_prehook(lambda *_: self._backward_begins(backward.exchanges))
                node.register_hook(lambda *_, found=node: self._backward_exchange_began(backward, found))

    @_guarded
    def _backward_begins(self, intervals: list[_Interval]) -> None:
        intervals.append(_Interval(self._clock.mark()))

    @_guarded
    def _backward_lookup_ends(self, backward: _Pass) -> None:
        backward.lookups[-1].end = self._clock.mark()

    @_guarded
    def _backward_exchange_began(self, backward: _Pass, node: Any) -> None:
        self._watch_end(backward.exchanges[-1], node.myreq)

    def _watch_end(self, exchange: _Interval, request: Any) -> None:
        """Has the end of what a request of TorchRec waits for marked when it comes, whoever waits for it."""
        request.req.get_future().then(lambda _: self._exchange_ends(exchange))

    @_guarded
    def _exchange_ends(self, exchange: _Interval) -> None:
        exchange.end = self._clock.mark()


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
