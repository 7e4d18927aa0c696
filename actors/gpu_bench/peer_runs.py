"""R2 by transformers: the same answers on the same card."""

from collections.abc import Iterator

from ...gpu.cuda.shapes import shape_named
from ...gpu.roofline import batch_s, cost_of
from .figure import Figure, LeftOut, Told
from .opened import BenchPlace, give_back
from .peer import Peer
from .requests import equal

_RUN_S = 45.0  # of one way of it; a GPU that is as fast as an H200 needs less than half


def peer_batches(where: BenchPlace, output: int) -> Iterator[Told]:
    """One step at a time, and a step ahead, which it can do on a GPU only."""
    sizes, device = where.sizes, where.place.device
    config = shape_named(sizes.large)
    asked = equal(sizes.equal, sizes.equal_prompt, output, config.vocab_size)
    floor = batch_s(cost_of(config), where.rates, [one.length for one in asked])
    try:
        peer = Peer(config, device)
    except ImportError as error:
        yield LeftOut("R2", f"transformers is not there to compare with: {error}")
        return
    for is_async in (True, False) if device.type == "cuda" else (False,):
        how = "asynchronous" if is_async else "synchronous"
        try:
            seconds = peer.seconds(asked, is_async=is_async, within_s=_RUN_S)
        except TimeoutError as error:
            yield LeftOut("R2", f"transformers, {how}: after {_RUN_S:.0f} s {error}")
            continue
        yield Figure(
            run="R2",
            what=f"{sizes.large}, {len(asked)} answers of {output:,}, transformers, {how}",
            name="wall_s",
            value=seconds,
            floor=floor,
            about={"tok_s": round(output * len(asked) / seconds)},
        )
    del peer
    give_back(device)
