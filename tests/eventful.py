"""An eventful life of an engine, for those who look at what is said in it."""

import asyncio

from stepahead import Engine, SamplingParams


async def call_in_many_ways(engine: Engine) -> None:
    """Preemption, stop strings, an abort, a deadline, a pause and a cache reset in a small pool."""
    calls = [
        engine.generate(
            f"{i % 4} is the beginning of a prompt {i}",
            SamplingParams(max_tokens=30, stop=("abc", "q") if i % 3 == 0 else (), seed=i),
            priority=i % 2,
            request_id=f"r{i}",
            deadline=0.2 if i == 5 else None,
        )
        for i in range(8)
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.1)
    await engine.abort("r1")
    await engine.pause()
    await asyncio.sleep(0.1)
    await engine.reset_prefix_cache()
    await engine.resume()
    await asyncio.gather(*tasks)
    assert engine.stats().preemptions > 0
