"""Reads a file of workloads: token ids that any engine can run, so that engines compare.

A JSON object: by name (W1 to W4) a list of runs, the warm-up first; a run is a list of requests,
`{"ids": [...], "out": n}`. W1 has one request a run. The last request of W4 is the long one, sent
while the others decode.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from ..mistake import Mistake
from .workload import LEAST_STREAM_OUTPUT, Job, Kind, Workload

KINDS: Mapping[str, Kind] = {"W1": "stream", "W2": "batch", "W3": "batch", "W4": "interference"}
_LARGEST_ID = 2**31 - 1


def read_workloads(path: Path, only: Sequence[str] | None, runs: int) -> list[Workload]:
    """Those of the file's workloads that are wanted, with a warm-up and `runs` runs each."""
    fields = read_object(path, "workloads")
    if only is None:
        only = [name for name in KINDS if name in fields]
        if not only:
            raise Mistake(f"{path} has no workload; {', '.join(KINDS)} are known")
    for name in only:
        if name not in KINDS:
            raise Mistake(f"--only names {name!r}; {', '.join(KINDS)} are known")
        if name not in fields:
            raise Mistake(f"{path} has no {name}")
    return [_workload(f"{path}: {name}", name, fields[name], runs) for name in only]


def read_object(path: Path, what: str) -> Mapping[str, object]:
    """The JSON object in a file of `what`, or a Mistake that says where it is none."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise Mistake(f"no {what} in {str(path)!r} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise Mistake(f"{path} is not UTF-8 text (byte {error.start} does not fit)") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Mistake(f"{path} is not JSON ({where}: {error.msg})") from error
    except RecursionError:
        raise Mistake(f"{path} is nested too deeply to be {what}") from None
    if not isinstance(value, dict):
        raise Mistake(f"{path} holds a {type(value).__name__}; {what} are a JSON object")
    return value


def check_fit(workload: Workload, *, vocab_size: int, longest: int) -> None:
    """Raise a Mistake naming the first request that the model has no ids or no room for."""
    for run, jobs in enumerate(workload.runs):
        for number, job in enumerate(jobs):
            place = f"{workload.name}, run {run}, request {number}"
            if max(job.prompt) >= vocab_size:
                raise Mistake(
                    f"{place}: token id {max(job.prompt)} is not the model's; "
                    f"its ids are below {vocab_size}"
                )
            if len(job.prompt) + job.output_tokens > longest:
                raise Mistake(
                    f"{place}: {len(job.prompt)} prompt and {job.output_tokens} output tokens "
                    f"do not fit the engine's context of {longest}"
                )


def _workload(place: str, name: str, value: object, runs: int) -> Workload:
    variants = _list(place, value, "runs")
    if len(variants) <= runs:
        raise Mistake(
            f"{place} has {len(variants)} runs, one of them the warm-up; "
            f"--runs {runs} needs {runs + 1}"
        )
    jobs = [_jobs(f"{place}, run {n}", name, variants[n]) for n in range(runs + 1)]
    return Workload(name, KINDS[name], jobs)


def _jobs(place: str, name: str, value: object) -> list[Job]:
    requests = _list(place, value, "requests")
    if KINDS[name] == "stream" and len(requests) != 1:
        raise Mistake(f"{place} has {len(requests)} requests; a single stream is one")
    if KINDS[name] == "interference" and len(requests) < 2:
        raise Mistake(f"{place} has 1 request; the last is the long one, and streams come before")
    jobs = [_job(f"{place}, request {n}", request) for n, request in enumerate(requests)]
    if KINDS[name] == "interference":
        for number, job in enumerate(jobs[:-1]):
            if job.output_tokens < LEAST_STREAM_OUTPUT:
                raise Mistake(
                    f"{place}, request {number}: out is {job.output_tokens}; a stream that "
                    f"decodes while the long prompt arrives needs {LEAST_STREAM_OUTPUT}"
                )
    return jobs


def _job(place: str, value: object) -> Job:
    if not isinstance(value, dict):
        raise Mistake(f"{place} is {_short(value)}; it must be an object with ids and out")
    out = value.get("out")
    if not _is_whole(out, 1):
        raise Mistake(f"{place}: out is {_short(out)}; it must be a whole number of at least 1")
    ids = _list(f"{place}: ids", value.get("ids"), "token ids")
    for index, token_id in enumerate(ids):
        if not _is_whole(token_id, 0):
            raise Mistake(f"{place}: ids[{index}] is {_short(token_id)}; it must be a token id")
    return Job(tuple(cast("list[int]", ids)), cast("int", out))


def _list(place: str, value: object, of: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise Mistake(f"{place} is {_short(value)}; it must be a list of {of}, at least one")
    return value


def _is_whole(value: object, least: int) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and least <= value <= _LARGEST_ID  # type: ignore[operator]  # it is a number


def _short(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
