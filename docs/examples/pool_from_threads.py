"""A pool in a program with threads and without asyncio."""

from concurrent.futures import ThreadPoolExecutor

from millpond import Millpond, Retry, TaskFailed

mp = Millpond()
images = mp.pool("images", max_concurrent=4)


@images.task
def shrink(name: str, width: int = 100) -> str:
    if not name:
        raise ValueError("no name")
    return f"{name} at {width}"


def request(name: str) -> str:
    """What a thread of a web server would do."""
    return shrink.sync.submit(name).get(timeout=5)


def main() -> None:
    with mp.sync:  # opens it on an event loop in a thread of its own
        handle = shrink.sync.submit("cat", width=50)
        print(handle.get(timeout=5), handle.status)

        with ThreadPoolExecutor(8) as threads:
            print(list(threads.map(request, ["dog", "fox"])))

        print(images.sync.map(lambda n: n * n, range(5)).get())
        report = images.sync.drain(shrink.each(["a", "b", "c"]))
        print(f"{report.completed} of {report.total}")
        assert report.ok

        with images.sync.stream(shrink.each(["a", "b"])) as outcomes:
            for outcome in outcomes:
                print(outcome.result)

        try:
            shrink.options(retry=Retry.never()).sync.submit("").get()
        except TaskFailed as failed:
            print(failed.error_message)

        assert images.sync.size() == 0


main()
