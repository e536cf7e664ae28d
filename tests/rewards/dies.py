"""A parent that dies while its workers are idle, or in a C function.

Its first worker stays idle, the second one is busy, and the third one waits for a child, whose id
goes into a file; with no file, all are busy and the main thread waits for them.
"""

import sys
import threading

from tasks.rewards.pool import Pool
from tasks.rewards.seat import Job

if __name__ == "__main__":
    pool = Pool(3, 0)
    process = Job("tests.rewards.functions:process", {}, 5.0)
    pids = [dict(seat.score(process, [("", "", "")]))[0].value for seat in pool.seats]
    print(*map(int, pids), flush=True)
    count = Job("tests.rewards.functions:obeys", {}, 1000.0), [("count", "", "")]
    if len(sys.argv) == 1:
        pool.score(count[0], count[1] * 40)
    child = Job("tests.rewards.functions:starts_a_child", {}, 1000.0), [("", "", sys.argv[1])]
    for seat, work in zip(pool.seats[1:], (count, child), strict=True):
        threading.Thread(target=lambda s=seat, w=work: list(s.score(*w)), daemon=True).start()
    threading.Event().wait()
