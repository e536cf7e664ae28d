"""A parent that dies while its workers are idle, or in a C function.

Its first worker stays idle, its second one is busy; with an argument both are, and the main thread
waits for them.
"""

import os
import sys
import threading

from tasks.rewards.pool import Pool
from tasks.rewards.seat import Job

if __name__ == "__main__":
    pool = Pool(2, 0)
    process = Job("tests.rewards.functions:process", {}, 5.0)
    pids = [dict(seat.score(process, [("", "", "")]))[0].value for seat in pool.seats]
    print(*map(int, pids), os.getpid(), flush=True)
    job, row = Job("tests.rewards.functions:obeys", {}, 1000.0), ("count", "", "")
    if len(sys.argv) > 1:
        pool.score(job, [row] * 40)
    threading.Thread(target=lambda: list(pool.seats[1].score(job, [row])), daemon=True).start()
    threading.Event().wait()
